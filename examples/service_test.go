package examples

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Two instances of pgx-service are replaced one after the other, twice, while clients
// place orders: each order gets one invoice, the numbers have neither a gap nor a
// repetition, and the job is handed over cleanly each time.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	const rounds, clients, some = 2, 4, 40
	s := newSite(t)
	owner := s.start()
	await(t, "the first instance to serve", func() bool { _, err := s.health(owner); return err == nil })
	standby := s.start()
	stopLoad := s.load(clients)

	for range 2 * rounds {
		await(t, "a standby that waits to be woken", func() bool {
			stats, err := s.health(standby)
			return err == nil && stats.Listening && stats.Waiters == 1
		})
		before, token := s.invoices()
		await(t, "invoices", func() bool { n, _ := s.invoices(); return n > before+some })
		s.terminate(owner)
		await(t, "the successor's invoices", func() bool { _, now := s.invoices(); return now > token })
		owner, standby = standby, s.start()
	}
	placed := stopLoad()
	await(t, "an invoice for each order", func() bool { n, _ := s.invoices(); return n >= placed })
	s.terminate(owner)
	s.terminate(standby)
	s.checkInvoices(placed)
	s.checkHandovers()
}

// site is where instances of the service run.
type site struct {
	t    *testing.T
	db   string // its URL
	pool *pgxpool.Pool
	http *http.Client

	mu        sync.Mutex // guards what follows
	instances []*instance
	serving   []*instance
}

// instance is one process of the service.
type instance struct {
	*fault.Child
	url string
}

func newSite(t *testing.T) *site {
	db := pgtest.Database(t)
	s := &site{t: t, pool: pgtest.Open(t, db), http: &http.Client{Timeout: fault.Patience}}
	t.Cleanup(s.http.CloseIdleConnections)
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("pool_max_conns", "3") // the job, its lease and the handlers get in each other's way
	u.RawQuery = q.Encode()
	s.db = u.String()
	return s
}

var addrPattern = regexp.MustCompile(`serving addr=(\S+)`)

// start starts an instance and returns when it has begun to listen for clients.
func (s *site) start() *instance {
	s.t.Helper()
	child, err := fault.Start(fault.Command{
		Role: "pgx-service", Path: program(s.t, "pgx-service"), Env: []string{"DATABASE_URL=" + s.db, "ADDR=127.0.0.1:0"},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		child.Kill()
		if s.t.Failed() {
			s.t.Logf("an instance printed:\n%s", child.Output())
		}
	})
	i := &instance{Child: child}
	await(s.t, "an instance to listen", func() bool {
		found := addrPattern.FindStringSubmatch(child.Output())
		if found != nil {
			i.url = "http://" + found[1]
		}
		return found != nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances = append(s.instances, i)
	s.serving = append(s.serving, i)
	return i
}

// terminate sends SIGTERM and waits for a good end.
func (s *site) terminate(i *instance) {
	s.t.Helper()
	if err := i.Terminate(); err != nil {
		s.t.Fatal(err)
	}
	if err := i.Wait(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	// Only now: clients may well meet an instance that is going down.
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, other := range s.serving {
		if other == i {
			s.serving = append(s.serving[:n:n], s.serving[n+1:]...)
			break
		}
	}
}

func (s *site) health(i *instance) (stats pgxbackend.Stats, err error) {
	resp, err := s.http.Get(i.url + "/healthz")
	if err != nil {
		return stats, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return stats, errors.New(resp.Status)
	}
	return stats, json.NewDecoder(resp.Body).Decode(&stats)
}

// load has clients place orders until stop is called, which returns how many it were.
func (s *site) load(clients int) (stop func() int) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var placed atomic.Int64
	var running sync.WaitGroup
	for client := range clients {
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				s.place(client, n)
				placed.Add(1)
				time.Sleep(5 * time.Millisecond) // the pace of the load
			}
		})
	}
	s.t.Cleanup(running.Wait) // when the test's context has ended
	return func() int {
		cancel()
		running.Wait()
		return int(placed.Load())
	}
}

// place places one order, at one instance after the other until one has confirmed it.
func (s *site) place(client, n int) {
	for try := client + n; s.t.Context().Err() == nil; try++ {
		s.mu.Lock()
		target := s.serving[try%len(s.serving)].url
		s.mu.Unlock()
		req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPut, fmt.Sprintf("%s/orders/%d-%d", target, client, n), nil)
		if err != nil {
			s.t.Error(err)
			return
		}
		if resp, err := s.http.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// invoices returns how many there are and the newest token.
func (s *site) invoices() (n int, token int64) {
	s.t.Helper()
	err := s.pool.QueryRow(s.t.Context(), `SELECT count(*), coalesce(max(token), 0) FROM example_service.invoices`).Scan(&n, &token)
	if err != nil {
		s.t.Fatal(err)
	}
	return n, token
}

func (s *site) checkInvoices(placed int) {
	s.t.Helper()
	var orders, lost, invoices, repeated, unknown, numbers, last, disordered int
	err := s.pool.QueryRow(s.t.Context(), `SELECT
		(SELECT count(*) FROM example_service.orders),
		(SELECT count(*) FROM example_service.orders o WHERE NOT EXISTS (SELECT FROM example_service.invoices WHERE order_id = o.id)),
		count(*),
		count(*) - count(DISTINCT order_id),
		count(*) FILTER (WHERE NOT EXISTS (SELECT FROM example_service.orders o WHERE o.id = order_id)),
		count(DISTINCT number),
		max(number),
		count(*) FILTER (WHERE token < earlier)
		FROM (SELECT *, max(token) OVER (ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier FROM example_service.invoices) i`,
	).Scan(&orders, &lost, &invoices, &repeated, &unknown, &numbers, &last, &disordered)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("%d orders placed, %d invoices; lost %d, repeated %d", placed, invoices, lost, repeated)
	if orders != placed || lost != 0 || invoices != placed || repeated != 0 || unknown != 0 {
		s.t.Errorf("placed %d, orders %d, invoices %d, lost %d, repeated %d, unknown %d", placed, orders, invoices, lost, repeated, unknown)
	}
	if numbers != placed || last != placed || disordered != 0 {
		s.t.Errorf("%d different numbers up to %d for %d invoices, %d of them behind a newer owner's", numbers, last, placed, disordered)
	}
}

// checkHandovers logs how long nobody had the job, by the database's clock: from the last
// invoice of one owner to the first of the next. A handover that is not a clean one waits
// for the lease to run out, which takes the rest of half a minute.
func (s *site) checkHandovers() {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `SELECT min(at) - lag(max(at)) OVER (ORDER BY token) FROM example_service.invoices GROUP BY token ORDER BY token OFFSET 1`)
	if err != nil {
		s.t.Fatal(err)
	}
	gaps, err := pgx.CollectRows(rows, pgx.RowTo[time.Duration])
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("handovers: %v", gaps)
	if len(gaps) < 4 {
		s.t.Errorf("only %d handovers", len(gaps))
	}
	first, clean := 0, 0
	for _, i := range s.instances {
		first += strings.Count(i.Output(), "has the job after=0 clean=false")
		clean += strings.Count(i.Output(), "clean=true")
		if all := strings.Count(i.Output(), "has the job"); all > 1 || strings.Contains(i.Output(), "the job failed") {
			s.t.Errorf("an instance had the job %d times:\n%s", all, i.Output())
		}
	}
	if first != 1 || clean < len(gaps) {
		s.t.Errorf("%d first owners, %d clean handovers, want 1 and at least %d", first, clean, len(gaps))
	}
}

// await waits until the answer is yes.
func await(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for deadline := time.Now().Add(fault.Patience); !yes(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", fault.Patience, what)
		}
	}
}
