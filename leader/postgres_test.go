package leader_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgserver"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/internal/tenure/processtest"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Three processes of one name under SIGKILL, SIGSTOP and SIGCONT, SIGTERM, and
// pg_terminate_backend: no term's writes come after a later term's, and there is a leader
// again in time (S7, S10).
func TestProcesses(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, pgtest.ForceDrop())
	c := &cluster{t: t, url: url, watch: pgtest.Open(t, pgtest.AdminURL(t, url))}
	processtest.Must(t, processtest.Ledger.Create(t.Context(), pgtest.Open(t, url)))
	for i := range c.members {
		c.spawn(i)
	}
	c.awaitWrite(time.Time{}, 0)
	rounds := 4
	if processtest.Soak() {
		rounds = 50
	}
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	kinds := []func(int, uint64){c.kill, c.freeze, c.terminate, c.disconnect}
	for round := range rounds {
		if round%len(kinds) == 0 {
			random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		}
		victim, token := c.leader()
		if random.IntN(5) == 0 {
			victim = random.IntN(len(c.members))
		}
		kinds[round%len(kinds)](victim, token)
	}
	for _, m := range c.members {
		processtest.Must(t, m.Terminate())
	}
	for _, m := range c.members {
		processtest.Must(t, m.Wait(t.Context()))
	}
	processtest.Must(t, processtest.Ledger.Check(t.Context(), c.watch))
	var terms, writes int
	processtest.Must(t, c.watch.QueryRow(t.Context(), `SELECT count(DISTINCT token), count(*) FROM ledger`).Scan(&terms, &writes))
	t.Logf("%d terms, %d writes; without a leader for %v at most", terms, writes, c.worst)
	// Nobody is left.
	processtest.Must(t, fault.AwaitCount(t.Context(), c.watch, fault.Backends{App: "candidate"}, 0))
}

// cluster is a few candidates and who watches them.
type cluster struct {
	t       *testing.T
	url     string
	watch   *pgxpool.Pool // as superuser
	members [3]*fault.Child
	names   [3]string
	spawned int
	worst   time.Duration
}

func (c *cluster) spawn(i int) {
	c.t.Helper()
	c.spawned++
	c.names[i] = fmt.Sprint("candidate ", c.spawned)
	c.members[i] = processtest.Spawn(c.t, "candidate", c.url, c.names[i])
}

// now is the database's clock, by which all is measured.
func (c *cluster) now() (now time.Time) {
	c.t.Helper()
	processtest.Must(c.t, c.watch.QueryRow(c.t.Context(), `SELECT clock_timestamp()`).Scan(&now))
	return now
}

// awaitWrite waits for a write after a time and of a later token than the given one, and
// returns when it was.
func (c *cluster) awaitWrite(after time.Time, token uint64) time.Time {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), fault.Patience)
	defer cancel()
	for {
		var at *time.Time
		err := c.watch.QueryRow(ctx, `SELECT min(at) FROM ledger WHERE at > $1 AND token > $2`, after, int64(token)).Scan(&at)
		processtest.Must(c.t, err)
		if at != nil {
			return *at
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			c.t.Fatal("nobody leads")
		}
	}
}

// leader returns who leads and under which token.
func (c *cluster) leader() (member int, token uint64) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), fault.Patience)
	defer cancel()
	for ctx.Err() == nil {
		processtest.Must(c.t, c.watch.QueryRow(ctx, `SELECT max(token) FROM ledger`).Scan(&token))
		for i := range c.members {
			if c.leads(i, token) {
				return i, token
			}
		}
		<-time.After(time.Millisecond) // the event is on its way
	}
	c.t.Fatal("nobody was elected")
	return 0, 0
}

func isOf(event string, token uint64) func(fault.Event) bool {
	return func(e fault.Event) bool {
		var of uint64
		return e.Name == event && json.Unmarshal(e.Data, &of) == nil && of == token
	}
}

func (c *cluster) leads(member int, token uint64) bool {
	return slices.ContainsFunc(c.members[member].Events(), isOf("elected", token))
}

// again waits for a leader after a fault; later says that it must be another term.
func (c *cluster) again(what string, since time.Time, token uint64, later bool) {
	c.t.Helper()
	if !later {
		token--
	}
	took := c.awaitWrite(since, token).Sub(since)
	c.worst = max(c.worst, took)
	c.t.Logf("%s: a leader after %v", what, took)
	if took > processTTL+time.Second {
		c.t.Errorf("%s: a leader after %v", what, took)
	}
}

func (c *cluster) kill(victim int, token uint64) {
	led, since := c.leads(victim, token), c.now()
	c.members[victim].Kill()
	c.again(fmt.Sprintf("SIGKILL of the leader: %v", led), since, token, led)
	c.spawn(victim)
}

func (c *cluster) freeze(victim int, token uint64) {
	led, since := c.leads(victim, token), c.now()
	processtest.Must(c.t, c.members[victim].Freeze())
	c.again(fmt.Sprintf("SIGSTOP of the leader: %v", led), since, token, led)
	processtest.Must(c.t, c.members[victim].Thaw())
	if led {
		// It has no say in it, but it learns of it.
		_, err := c.members[victim].Await(c.t.Context(), isOf("lost", token))
		processtest.Must(c.t, err)
	}
}

func (c *cluster) terminate(victim int, token uint64) {
	led, since := c.leads(victim, token), c.now()
	processtest.Must(c.t, c.members[victim].Terminate())
	c.again(fmt.Sprintf("SIGTERM of the leader: %v", led), since, token, led)
	processtest.Must(c.t, c.members[victim].Wait(c.t.Context()))
	if led {
		_, err := c.members[victim].Await(c.t.Context(), isOf("relinquished", token))
		processtest.Must(c.t, err)
	}
	c.spawn(victim)
}

func (c *cluster) disconnect(victim int, token uint64) {
	_, err := fault.Terminate(c.t.Context(), c.watch, fault.Backends{App: c.names[victim]})
	processtest.Must(c.t, err)
	c.again("pg_terminate_backend", c.now(), token, false)
}

// S53, S54: the server crashes, and then is read-only for a while. Nobody is restarted,
// nobody asks in a hot loop, and there is a leader again.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, pgserver.Options{})
	url := pgtest.Database(t, pgtest.On(server), pgtest.ForceDrop())
	c := &cluster{t: t, url: url, watch: pgtest.Open(t, pgtest.AdminURL(t, url))}
	processtest.Must(t, processtest.Ledger.Create(t.Context(), pgtest.Open(t, url)))
	ctx, cancel := context.WithCancel(t.Context())
	var candidates sync.WaitGroup
	lost, elected := make(chan uint64, 100), make(chan uint64, 100)
	var sent fault.Tracer
	for range 3 {
		s, err := processtest.New(t.Context(), url, "candidate", namesake, processtest.Traced(&sent))
		processtest.Must(t, err)
		candidates.Go(func() {
			defer s.Close()
			runForOffice(ctx, s, func(event string, data any) {
				switch event {
				case "lost":
					lost <- data.(uint64)
				case "elected":
					elected <- data.(uint64)
				}
			})
		})
	}
	defer candidates.Wait()
	defer cancel()
	c.awaitWrite(time.Time{}, 0)

	// The pauses of who asks in vain grow with the time that it takes.
	const patience = processTTL + 8*time.Second
	crashes := 1
	if processtest.Soak() {
		crashes = 20
	}
	for range crashes {
		time.Sleep(rand.N(processTTL)) // at any moment of a term
		server.Crash()
		processtest.Must(t, server.Restart(t.Context()))
		c.watch.Reset()
		since := c.now()
		took := c.awaitWrite(since, 0).Sub(since)
		t.Logf("a crash: a leader %v after the restart", took)
		if took > patience {
			t.Errorf("a leader only %v after the restart", took)
		}
	}

	exec := func(sql string) {
		t.Helper()
		// The watcher's own sessions can write whatever the default is.
		_, err := c.watch.Exec(t.Context(), sql)
		processtest.Must(t, err)
	}
	for len(lost) > 0 {
		<-lost // of the crash
	}
	for len(elected) > 0 {
		<-elected
	}
	exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
	sent.Reset()
	const disconnect = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'candidate%'`
	exec(disconnect)
	select {
	case <-lost:
	case <-time.After(fault.Patience):
		t.Fatal("nobody noticed that leases cannot be renewed")
	}
	asked := len(sent.Statements())
	t.Logf("%d statements of 3 processes until the lease was lost", asked)
	if asked > 1000 {
		t.Errorf("%d statements of 3 processes in about a TTL of a server that is read-only", asked)
	}
	exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', current_database()); END $$`)
	// Sessions that were opened meanwhile are read-only for good, and are dropped (S53).
	began := time.Now()
	select {
	case <-elected:
	case <-time.After(fault.Patience):
		t.Fatal("nobody leads though leases can be taken again")
	}
	t.Logf("read-only for a while: a leader %v after it could write again", time.Since(began))
	if time.Since(began) > patience {
		t.Errorf("a leader only %v after it could write again", time.Since(began))
	}
	processtest.Must(t, processtest.Ledger.Check(t.Context(), c.watch))
}
