package pool_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgserver"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/internal/tenure/processtest"
	"github.com/aetomala/worklease/pool"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Four processes with a Pool of the same 64 IDs under SIGKILL, SIGSTOP and SIGCONT,
// SIGTERM, and pg_terminate_backend: whatever the victim had is worked on again in time,
// no owner's writes come after a later owner's, and nothing piles up.
func TestProcesses(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, pgtest.ForceDrop())
	f := &fleet{t: t, url: url, watch: pgtest.Open(t, pgtest.AdminURL(t, url))}
	processtest.Must(t, processtest.Ledger.Create(t.Context(), pgtest.Open(t, url)))
	_, err := f.watch.Exec(t.Context(), `CREATE INDEX ON ledger (work_id, token, at)`)
	processtest.Must(t, err)
	for i := range f.members {
		f.spawn(i)
	}
	f.await(time.Time{}, nil, processIDs)
	rounds := 4
	if processtest.Soak() {
		rounds = 50
	}
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	kinds := []func(int){f.kill, f.freeze, f.terminate, f.disconnect}
	for round := range rounds {
		if round%len(kinds) == 0 {
			random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		}
		victim := random.IntN(len(f.members))
		if random.IntN(4) > 0 {
			victim = f.richest()
		}
		kinds[round%len(kinds)](victim)
		f.checkFlat()
	}
	for _, m := range f.members {
		processtest.Must(t, m.Terminate())
	}
	for _, m := range f.members {
		processtest.Must(t, m.Wait(t.Context()))
	}
	processtest.Must(t, processtest.Ledger.Check(t.Context(), f.watch))
	var owners, writes int
	processtest.Must(t, f.watch.QueryRow(t.Context(), `SELECT count(DISTINCT token), count(*) FROM ledger`).Scan(&owners, &writes))
	t.Logf("%d owners, %d writes; an ID without an owner for %v at most", owners, writes, f.worst)
}

// fleet is a few processes and who watches them.
type fleet struct {
	t       *testing.T
	url     string
	watch   *pgxpool.Pool // as superuser
	members [4]*fault.Child
	names   [4]string
	spawned int
	worst   time.Duration
}

func (f *fleet) spawn(i int) {
	f.t.Helper()
	f.spawned++
	f.names[i] = fmt.Sprint("pool ", f.spawned)
	f.members[i] = processtest.Spawn(f.t, "pool", f.url, f.names[i])
}

// now is the database's clock, by which all is measured.
func (f *fleet) now() (now time.Time) {
	f.t.Helper()
	processtest.Must(f.t, f.watch.QueryRow(f.t.Context(), `SELECT clock_timestamp()`).Scan(&now))
	return now
}

// has returns the live leases of a member.
func (f *fleet) has(member int) map[string]uint64 {
	f.t.Helper()
	rows, err := f.watch.Query(f.t.Context(), `SELECT work_id, fencing_token FROM worklease_leases
		WHERE holder_id = $1 AND expires_at > clock_timestamp()`, f.names[member])
	processtest.Must(f.t, err)
	defer rows.Close()
	leases := map[string]uint64{}
	for rows.Next() {
		var id string
		var token uint64
		processtest.Must(f.t, rows.Scan(&id, &token))
		leases[id] = token
	}
	processtest.Must(f.t, rows.Err())
	return leases
}

func (f *fleet) richest() (member int) {
	f.t.Helper()
	most := -1
	for i := range f.members {
		if n := len(f.has(i)); n > most {
			member, most = i, n
		}
	}
	return member
}

// await waits until each of the IDs was written for after a time, under a later token
// than before where there is one. It returns when the last was.
func (f *fleet) await(after time.Time, before map[string]uint64, ids []string) time.Time {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), fault.Patience)
	defer cancel()
	tokens := make([]int64, len(ids))
	for i, id := range ids {
		tokens[i] = int64(before[id])
	}
	for {
		var missing int
		var last time.Time
		processtest.Must(f.t, f.watch.QueryRow(ctx, `
			SELECT count(*) FILTER (WHERE first IS NULL), coalesce(max(first), $1) FROM (
				SELECT (SELECT min(at) FROM ledger l WHERE l.work_id = v.id AND l.token > v.token AND l.at > $1) AS first
				FROM unnest($2::text[], $3::bigint[]) v (id, token)) w`, after, ids, tokens).Scan(&missing, &last))
		if missing == 0 {
			return last
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			f.t.Fatalf("nobody works on %d IDs", missing)
		}
	}
}

// again waits until all that a victim had is worked on again; before is nil when it may
// be so by the victim.
func (f *fleet) again(what string, since time.Time, before map[string]uint64, ids []string, bound time.Duration) {
	f.t.Helper()
	took := f.await(since, before, ids).Sub(since)
	f.worst = max(f.worst, took)
	f.t.Logf("%s of an owner of %d IDs: all worked on after %v", what, len(ids), took)
	if took > bound {
		f.t.Errorf("%s of an owner of %d IDs: all worked on only after %v", what, len(ids), took)
	}
}

func keys(leases map[string]uint64) []string {
	ids := make([]string, 0, len(leases))
	for id := range leases {
		ids = append(ids, id)
	}
	return ids
}

const inTime = processTTL + time.Second

func (f *fleet) kill(victim int) {
	leases, since := f.has(victim), f.now()
	f.members[victim].Kill()
	f.again("SIGKILL", since, leases, keys(leases), inTime)
	f.spawn(victim)
}

func (f *fleet) freeze(victim int) {
	leases, since := f.has(victim), f.now()
	processtest.Must(f.t, f.members[victim].Freeze())
	f.again("SIGSTOP", since, leases, keys(leases), inTime)
	processtest.Must(f.t, f.members[victim].Thaw())
}

func (f *fleet) terminate(victim int) {
	leases, since := f.has(victim), f.now()
	processtest.Must(f.t, f.members[victim].Terminate())
	f.again("SIGTERM", since, leases, keys(leases), inTime)
	processtest.Must(f.t, f.members[victim].Wait(f.t.Context()))
	f.spawn(victim)
}

// disconnect ends all connections of a member. Whoever works then writes every second.
func (f *fleet) disconnect(victim int) {
	leases := f.has(victim)
	_, err := fault.Terminate(f.t.Context(), f.watch, fault.Backends{App: f.names[victim]})
	processtest.Must(f.t, err)
	f.again("pg_terminate_backend", f.now(), nil, keys(leases), inTime+time.Second)
}

// checkFlat: a slot is a goroutine that works or waits, and connections are few.
func (f *fleet) checkFlat() {
	f.t.Helper()
	for i, m := range f.members {
		processtest.Must(f.t, m.Send("count", nil))
		e, err := m.Await(f.t.Context(), fault.Named("goroutines"))
		processtest.Must(f.t, err)
		var goroutines int
		processtest.Must(f.t, e.Decode(&goroutines))
		connections, err := fault.Count(f.t.Context(), f.watch, fault.Backends{App: f.names[i]})
		processtest.Must(f.t, err)
		if goroutines > 64*4+60 || connections > 20 {
			f.t.Errorf("%s has %d goroutines and %d connections", f.names[i], goroutines, connections)
		}
	}
}

// P14: slots whose leases another process has cost what their looks cost, all together,
// and are woken when it leaves.
func TestIdleSlotsCostNothing(t *testing.T) {
	t.Parallel()
	const ownerTTL = 3 * time.Second // a busy machine must be able to renew in time
	url := pgtest.Database(t, pgtest.ForceDrop())
	processtest.Must(t, processtest.Ledger.Create(t.Context(), pgtest.Open(t, url)))
	renewed := &renewals{seen: make(chan struct{}, 1000)}
	owner, err := processtest.New(t.Context(), url, "owner", worklease.Config{TTL: processTTL, HolderID: "owner"})
	processtest.Must(t, err)
	defer owner.Close()
	lease, err := worklease.New(owner.Backend, worklease.Config{TTL: ownerTTL, HolderID: "owner", Observer: renewed})
	processtest.Must(t, err)
	ids := names(100)
	var stops []func()
	var tokens []worklease.Token
	for _, id := range ids {
		token, err := lease.Acquire(t.Context(), id)
		processtest.Must(t, err)
		_, stop := lease.StartRenewal(t.Context(), token)
		tokens, stops = append(tokens, token), append(stops, stop)
	}

	var sent fault.Tracer
	idle, err := processtest.New(t.Context(), url, "idle", worklease.Config{TTL: processTTL, HolderID: "idle"}, processtest.Traced(&sent))
	processtest.Must(t, err)
	defer idle.Close()
	p, err := newWriters(idle, ids)
	processtest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	defer running.Wait()
	defer cancel()
	asked := func() int { return sent.Count(fault.Containing("-- worklease: acquire")) }
	eventually(t, func() bool { return asked() >= len(ids) && idle.Backend.Stats().Listening })
	renewed.await(t, 2*len(ids)) // a TTL, in which all settles
	sent.Reset()
	began := time.Now()
	renewed.await(t, 6*len(ids)) // three TTLs
	ttls := int(time.Since(began)/ownerTTL) + 1
	// The listener's heartbeats go by the clock, not by the TTL.
	n := len(sent.Statements()) - sent.Count(fault.Containing("-- worklease: heartbeat"))
	t.Logf("%d statements in %d TTLs", n, ttls)
	if n == 0 || n > 2*ttls {
		t.Errorf("%d statements in %d TTLs", n, ttls)
	}
	if n := len(p.ActiveSlots()); n != 0 {
		t.Errorf("%d slots are active", n)
	}

	for i, token := range tokens {
		stops[i]()
		processtest.Must(t, lease.Release(t.Context(), token))
	}
	eventually(t, func() bool { return len(p.ActiveSlots()) == len(ids) })
}

// renewals tells of each that came through.
type renewals struct {
	worklease.NopObserver
	seen chan struct{}
}

func (r *renewals) OnRenew(_ context.Context, e worklease.RenewEvent) {
	if e.Err == nil {
		select {
		case r.seen <- struct{}{}:
		default:
		}
	}
}

func (r *renewals) await(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-r.seen:
		case <-time.After(fault.Patience):
			t.Fatal("no renewals")
		}
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(fault.Patience); !ok(); {
		if time.Now().After(end) {
			t.Fatal("it does not come")
		}
		<-time.After(10 * time.Millisecond)
	}
}

// S53, S54: the server crashes under two Pools; nobody is restarted, and all is worked on
// again.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, pgserver.Options{})
	url := pgtest.Database(t, pgtest.On(server), pgtest.ForceDrop())
	f := &fleet{t: t, url: url, watch: pgtest.Open(t, pgtest.AdminURL(t, url))}
	processtest.Must(t, processtest.Ledger.Create(t.Context(), pgtest.Open(t, url)))
	ids := names(16)
	ctx, cancel := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	var pools []*pool.Pool
	for i := range 2 {
		s, err := processtest.New(t.Context(), url, fmt.Sprint("pool ", i), worklease.Config{TTL: processTTL, HolderID: fmt.Sprint("pool ", i)})
		processtest.Must(t, err)
		p, err := newWriters(s, ids)
		processtest.Must(t, err)
		pools = append(pools, p)
		runs.Go(func() {
			defer s.Close()
			if err := p.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	defer runs.Wait()
	defer cancel()
	f.await(time.Time{}, nil, ids)
	server.Crash()
	processtest.Must(t, server.Restart(t.Context()))
	f.watch.Reset()
	// The pauses of who asks in vain grow with the time that it takes.
	f.again("a crash of the server", f.now(), nil, ids, processTTL+8*time.Second)
	active := len(pools[0].ActiveSlots()) + len(pools[1].ActiveSlots())
	if active < len(ids) {
		t.Errorf("%d slots are active", active)
	}
	processtest.Must(t, processtest.Ledger.Check(t.Context(), f.watch))
}
