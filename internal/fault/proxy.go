package fault

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Proxy stands before a PostgreSQL server on a loopback port. Its own methods
// are those of Lines and mean every connection through it, open and to come.
//
// It reads the protocol, so connections through it are not encrypted on either
// side: it answers no to a client that asks for TLS, and [Proxy.URL] asks for none.
type Proxy struct {
	*Lines

	listener         net.Listener
	network, address string // of the server
	working          sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	links   map[*link]struct{}
	lines   []*Lines      // handed out by Only, and all of them
	changed chan struct{} // closed and replaced when a switch is thrown
}

// NewProxy starts a proxy before the server that databaseURL names. It is
// closed, with every connection through it, at the end of the test.
func NewProxy(t TB, databaseURL string) *Proxy {
	t.Helper()
	p, err := Listen(databaseURL)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(p.Close)
	return p
}

// Listen starts a proxy before the server that databaseURL names. The caller
// closes it.
func Listen(databaseURL string) (*Proxy, error) {
	target, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("fault: proxy: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("fault: proxy: %w", err)
	}
	p := &Proxy{listener: listener, links: map[*link]struct{}{}, changed: make(chan struct{})}
	p.network, p.address = pgconn.NetworkAddress(target.Host, target.Port)
	p.Lines = &Lines{proxy: p, all: true}
	p.lines = []*Lines{p.Lines}
	p.working.Go(p.accept)
	return p, nil
}

// URL returns databaseURL, a URL or a list of key=value, with the proxy in the
// server's place.
func (p *Proxy) URL(databaseURL string) string {
	host, port, _ := net.SplitHostPort(p.listener.Addr().String())
	u, err := url.Parse(databaseURL)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		// Of a key given twice the last one counts.
		return fmt.Sprintf("%s host=%s port=%s sslmode=disable", databaseURL, host, port)
	}
	u.Host = net.JoinHostPort(host, port)
	query := u.Query()
	query.Del("host")
	query.Del("port")
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()
	return u.String()
}

// Close resets every connection and frees the port.
func (p *Proxy) Close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
	p.working.Wait()
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		l := &link{proxy: p, client: conn, gone: make(chan struct{}), expected: map[int]*shot{}}
		if p.admit(l) {
			p.working.Go(l.serve)
		} else {
			l.cut()
		}
	}
}

func (p *Proxy) admit(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.Lines.refusing {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) forget(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// identify gives a link its name, now that the client told it, and reports
// whether it may go on.
func (p *Proxy) identify(l *link, app string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.app = app
	l.named = true
	for _, lines := range p.lines {
		if lines.covers(l) {
			lines.opened++
			if lines.refusing {
				return false
			}
		}
	}
	return true
}

// state is what a link finds before it passes on bytes: the worst of the
// switches that cover it, and a channel closed when they may have changed.
func (p *Proxy) state(l *link, d Direction) (t treatment, delay time.Duration, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lines := range p.lines {
		if lines.covers(l) {
			t = max(t, lines.treatment[d])
			delay = max(delay, lines.delay[d])
		}
	}
	if l.lost[d] {
		t = vanish
	}
	return t, delay, p.changed
}

// lose marks bytes as lost: what came after them has no meaning any more.
func (p *Proxy) lose(l *link, d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.lost[d] = true
}

// passing writes down the statements of a request and returns the trigger that
// they set off, if any.
func (p *Proxy) passing(l *link, sql []string) *Trigger {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lines := range p.lines {
		if lines.covers(l) {
			lines.statements = append(lines.statements, sql...)
		}
	}
	for _, lines := range p.lines {
		if !lines.covers(l) {
			continue
		}
		for _, t := range lines.triggers {
			if t.left > 0 && slices.ContainsFunc(sql, t.match) {
				t.left--
				l.held = l.held || t.act == holdRequest
				return t
			}
		}
	}
	return nil
}

func (p *Proxy) keep(l *link, key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.key = key
}

// beyondRecall reports whether a request to cancel is for a link on which a
// request is, or was, held: a client that gives up must not reach what comes late.
func (p *Proxy) beyondRecall(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.held && l.key == key {
			return true
		}
	}
	return false
}

func (p *Proxy) throwLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}
