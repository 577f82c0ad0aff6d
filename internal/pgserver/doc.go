// Package pgserver runs a disposable PostgreSQL: a fresh cluster from the binaries that are on this
// machine, in memory where there is room, on a free port of 127.0.0.1.
//
// # What is left behind
//
// Nothing. [Server.Stop] ends the server and removes its folder. When the process that started a
// server ends without calling Stop (a panic, SIGKILL), the kernel ends the server (Linux) and a
// small shell that waited for that moment removes the folder. Should the shell be killed as well,
// the next [Start] on this machine sweeps the folder away.
//
// [StartPooler] runs a PgBouncer in the same way, where this machine has one.
//
// # Not for production
//
// Durability is switched off, and whoever can reach 127.0.0.1 is a superuser.
//
// It is a package apart from pgtest so that pgrun compiles without the migrations, the test
// libraries and package testing.
package pgserver
