package fault

import (
	"slices"
	"time"
)

// Direction is a way through the proxy.
type Direction int

const (
	ToServer Direction = iota
	ToClient
)

// treatment is what happens to bytes in one direction, the worst last.
type treatment int

const (
	pass treatment = iota
	stall
	vanish
)

// Lines is a set of a proxy's connections, those that are open and those to
// come, with switches that work at once. Where several sets cover a
// connection, the worst treatment counts.
type Lines struct {
	proxy *Proxy
	all   bool
	app   string

	// Guarded by the proxy's mutex.
	treatment  [2]treatment
	delay      [2]time.Duration
	refusing   bool
	triggers   []*Trigger
	statements []string
	opened     int
}

// Only returns the connections whose client gave this application_name when it
// connected.
func (p *Proxy) Only(applicationName string) *Lines {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lines := range p.lines {
		if !lines.all && lines.app == applicationName {
			return lines
		}
	}
	lines := &Lines{proxy: p, app: applicationName}
	p.lines = append(p.lines, lines)
	return lines
}

// covers reports whether a link belongs to the set. A link without a name yet
// belongs to the set of all only.
func (s *Lines) covers(l *link) bool { return s.all || l.named && s.app == l.app }

// Pass lets everything through again. Stalled bytes go on; a connection that
// lost bytes in a black hole stays dead until it is cut. Triggers stay armed.
func (s *Lines) Pass() {
	s.throw(func() {
		s.treatment = [2]treatment{}
		s.delay = [2]time.Duration{}
		s.refusing = false
	})
}

// Delay makes everything in one direction arrive that much later.
func (s *Lines) Delay(d Direction, by time.Duration) {
	s.throw(func() { s.delay[d] = by })
}

// Stall stops reading in one direction. The sender's bytes wait, the last ones
// in its own buffers, until Pass. Towards the server that is a network that heals
// later, towards the client a client that does not listen. A request to cancel
// has no name: it stalls only where all connections do, and elsewhere goes ahead.
func (s *Lines) Stall(d Direction) {
	s.throw(func() { s.treatment[d] = stall })
}

// BlackHole makes bytes in the given directions vanish, and the news that the
// other side has closed with them. Sockets stay open, and new connections are
// accepted and never answered. Without a direction it means both.
func (s *Lines) BlackHole(directions ...Direction) {
	if len(directions) == 0 {
		directions = []Direction{ToServer, ToClient}
	}
	s.throw(func() {
		for _, d := range directions {
			s.treatment[d] = vanish
		}
	})
}

// Refuse resets new connections until Pass. Those that are open live on.
func (s *Lines) Refuse() {
	s.throw(func() { s.refusing = true })
}

// Cut resets the connections that are open now and returns how many those were.
func (s *Lines) Cut() int {
	p := s.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for l := range p.links {
		if s.covers(l) {
			l.cut()
			n++
		}
	}
	return n
}

// Opened returns how many connections there have been.
func (s *Lines) Opened() int {
	s.proxy.mu.Lock()
	defer s.proxy.mu.Unlock()
	return s.opened
}

// Lost returns how many open connections have lost bytes and are dead.
func (s *Lines) Lost() int {
	s.proxy.mu.Lock()
	defer s.proxy.mu.Unlock()
	n := 0
	for l := range s.proxy.links {
		if s.covers(l) && (l.lost[ToServer] || l.lost[ToClient]) {
			n++
		}
	}
	return n
}

// Statements returns the statements that clients ran, in order, under whatever
// protocol; among them those that a trigger held or dropped.
func (s *Lines) Statements() []string {
	s.proxy.mu.Lock()
	defer s.proxy.mu.Unlock()
	return slices.Clone(s.statements)
}

func (s *Lines) throw(change func()) {
	s.proxy.mu.Lock()
	defer s.proxy.mu.Unlock()
	change()
	s.proxy.throwLocked()
}
