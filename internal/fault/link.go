package fault

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// link is one client's connection and the one to the server that carries it on.
type link struct {
	proxy *Proxy

	// Guarded by the proxy's mutex.
	app   string
	named bool
	lost  [2]bool
	key   string // by which the client may cancel
	held  bool   // a trigger has held a request

	gone chan struct{} // closed by cut

	mu       sync.Mutex
	cutOff   bool
	client   net.Conn
	server   net.Conn
	expected map[int]*shot // by the number of the answer
}

// Numbers of the startup messages that are no startup.
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

var (
	errVanished = errors.New("fault: bytes vanished")
	errCut      = errors.New("fault: connection cut")
)

// serve carries the link from its first byte to its end.
func (l *link) serve() {
	defer l.proxy.forget(l)
	defer l.cut()
	from := newSource(l.client)
	hello, err := l.introduce(from)
	if err == nil {
		err = l.connect(hello)
	}
	if errors.Is(err, errVanished) {
		io.Copy(io.Discard, l.client)
		<-l.gone // In a black hole nobody learns that the other has left.
	}
	if err != nil {
		return
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		l.answers(newSource(l.server))
	}()
	l.requests(newRequests(from))
	<-answered
	l.abandon()
	if l.gate(ToClient, time.Now()) != nil {
		<-l.gone // The client must not learn of the end by a reset either.
	}
}

// introduce reads up to the startup or cancel message and returns it.
func (l *link) introduce(from *source) ([]byte, error) {
	for {
		hello, err := from.startup()
		if err != nil {
			return nil, err
		}
		if err := l.gate(ToServer, from.arrived); err != nil {
			return nil, err
		}
		if len(hello) < 8 {
			return nil, errors.New("fault: short startup message")
		}
		switch binary.BigEndian.Uint32(hello[4:]) {
		case sslRequest, gssRequest:
			if err := l.gate(ToClient, time.Now()); err != nil {
				return nil, err
			}
			if _, err := l.client.Write([]byte{'N'}); err != nil {
				return nil, err
			}
		case cancelRequest:
			if l.proxy.beyondRecall(string(hello[8:])) {
				return nil, errCut
			}
			return hello, nil
		default:
			var m pgproto3.StartupMessage
			if err := m.Decode(hello[4:]); err != nil {
				return nil, err
			}
			if !l.proxy.identify(l, m.Parameters["application_name"]) {
				return nil, errCut
			}
			// Once more, now that the link has a name.
			return hello, l.gate(ToServer, from.arrived)
		}
	}
}

// connect reaches the server and hands it the client's first message.
func (l *link) connect(hello []byte) error {
	server, err := net.DialTimeout(l.proxy.network, l.proxy.address, Patience)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.server = server
	cutOff := l.cutOff
	l.mu.Unlock()
	if cutOff {
		server.Close()
		return errCut
	}
	_, err = server.Write(hello)
	return err
}

// gate waits until bytes that arrived then may go on. It returns errVanished
// when they may not, and errCut when there is nowhere to go.
func (l *link) gate(d Direction, arrived time.Time) error {
	for {
		t, delay, changed := l.proxy.state(l, d)
		var due <-chan time.Time
		switch t {
		case vanish:
			l.proxy.lose(l, d)
			return errVanished
		case pass:
			wait := time.Until(arrived.Add(delay))
			if wait <= 0 {
				return nil
			}
			due = time.After(wait)
		}
		select {
		case <-due:
		case <-changed:
		case <-l.gone:
			return errCut
		}
	}
}

// requests passes on what the client sends, until it sends no more.
func (l *link) requests(from *requests) {
	answers := 0 // that the server owes for what has passed
	for {
		req, err := from.next()
		if len(req.raw) > 0 {
			err = errors.Join(err, l.forward(req, from.from.arrived, answers))
		}
		if req.answered {
			answers++
		}
		if errors.Is(err, errCut) {
			return
		}
		if err != nil {
			break
		}
	}
	// The server reads what passed before, however the client has left.
	if l.gate(ToServer, time.Now()) == nil {
		l.server.(interface{ CloseWrite() error }).CloseWrite()
	}
}

// forward passes on one request, or does to it what a trigger says. The number
// is that of the answer it will get.
func (l *link) forward(req request, arrived time.Time, number int) error {
	if err := l.gate(ToServer, arrived); err != nil {
		return vanished(err)
	}
	if t := l.proxy.passing(l, req.sql); t != nil {
		s := &shot{Trigger: t, link: l}
		l.expect(number, s)
		if err := s.request(); err != nil {
			return vanished(err)
		}
	}
	_, err := l.server.Write(req.raw)
	return err
}

// vanished hides that bytes vanished from the one who sent them.
func vanished(err error) error {
	if errors.Is(err, errVanished) {
		return nil
	}
	return err
}

// answers passes on what the server sends, until it sends no more.
func (l *link) answers(from *source) {
	number := -1 // The first answer is to the startup.
	listening := true
	for {
		f, err := from.next()
		if err != nil {
			l.hangUp()
			return
		}
		s := l.awaited(number)
		switch f.kind() {
		case readyForQuery:
			number++
		case backendKeyData:
			l.proxy.keep(l, string(f.body()))
		}
		if s != nil {
			f = s.answer(f)
		}
		if len(f) == 0 || !listening || l.gate(ToClient, from.arrived) != nil {
			continue
		}
		// A client that is gone does not stop the server: it reads on.
		_, err = l.client.Write(f)
		listening = err == nil
	}
}

// hangUp tells the client that the server has closed, unless such news vanish.
func (l *link) hangUp() {
	l.abandon()
	if l.gate(ToClient, time.Now()) == nil {
		l.client.Close()
		l.server.Close()
	}
}

func (l *link) expect(number int, s *shot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expected[number] = s
}

// abandon tells every trigger that still waits for an answer that none will come.
func (l *link) abandon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.expected {
		s.abandon()
	}
}

func (l *link) awaited(number int) *shot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expected[number]
}

// silence makes bytes vanish both ways from now on, with the sockets open.
func (l *link) silence() {
	l.proxy.lose(l, ToServer)
	l.proxy.lose(l, ToClient)
}

// cut resets both connections, at once and for good.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cutOff {
		return
	}
	l.cutOff = true
	close(l.gone)
	for _, conn := range []net.Conn{l.client, l.server} {
		if tcp, ok := conn.(*net.TCPConn); ok {
			tcp.SetLinger(0)
		}
		if conn != nil {
			conn.Close()
		}
	}
}
