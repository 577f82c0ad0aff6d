package fault

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// source reads protocol messages from a connection.
type source struct {
	in *bufio.Reader
	// arrived is when the bytes of the last message came in. Messages that
	// came together have it in common, so that a delay is paid once.
	arrived time.Time
}

func newSource(conn net.Conn) *source {
	return &source{in: bufio.NewReaderSize(conn, 16<<10)}
}

// frame is one message as it stood on the wire.
type frame []byte

func (f frame) kind() byte   { return f[0] }
func (f frame) body() []byte { return f[5:] }

// Kinds of messages from the server.
const (
	readyForQuery  = 'Z'
	backendKeyData = 'K'
)

// next reads one message.
func (s *source) next() (frame, error) {
	return s.message(1)
}

// startup reads the first message of a connection, the only one without a kind.
func (s *source) startup() ([]byte, error) {
	return s.message(0)
}

// message reads a message whose length stands behind lead bytes and counts itself.
func (s *source) message(lead int) ([]byte, error) {
	waits := s.in.Buffered() == 0
	header, err := s.in.Peek(lead + 4)
	if err != nil {
		return nil, err
	}
	if waits {
		s.arrived = time.Now()
	}
	size := int(binary.BigEndian.Uint32(header[lead:]))
	if size < 4 || size > 1<<30 {
		return nil, fmt.Errorf("fault: message of %d bytes", size)
	}
	raw := make([]byte, lead+size)
	_, err = io.ReadFull(s.in, raw)
	return raw, err
}

// request is what a client sends before it waits for an answer: as a rule one
// simple query, or the messages up to a Sync.
type request struct {
	raw []byte
	sql []string // the statements it runs, in order
	// answered says that the server ends its answer with ReadyForQuery. It does
	// not for what ends in a Flush, and for data, passwords and goodbyes.
	answered bool
}

// requests reads a client's requests. It knows the statements that the client
// prepared by the names it gave them.
type requests struct {
	from     *source
	prepared map[string]string // statement name to SQL
	portals  map[string]string // portal name to SQL
}

func newRequests(from *source) *requests {
	return &requests{from: from, prepared: map[string]string{}, portals: map[string]string{}}
}

// next reads one request. With an error it returns what came before it.
func (r *requests) next() (req request, err error) {
	for {
		f, err := r.from.next()
		if err != nil {
			return req, err
		}
		req.raw = append(req.raw, f...)
		whole, err := r.read(f, &req)
		if whole || err != nil {
			return req, err
		}
	}
}

// read takes one message into req and reports whether it ends there.
func (r *requests) read(f frame, req *request) (whole bool, err error) {
	switch f.kind() {
	case 'P':
		var m pgproto3.Parse
		err = m.Decode(f.body())
		r.prepared[m.Name] = m.Query
	case 'B':
		var m pgproto3.Bind
		err = m.Decode(f.body())
		r.portals[m.DestinationPortal] = r.prepared[m.PreparedStatement]
	case 'E':
		var m pgproto3.Execute
		err = m.Decode(f.body())
		req.sql = append(req.sql, r.portals[m.Portal])
	case 'C':
		var m pgproto3.Close
		err = m.Decode(f.body())
		if m.ObjectType == 'S' {
			delete(r.prepared, m.Name)
		}
	case 'D': // describe
	case 'Q':
		var m pgproto3.Query
		err = m.Decode(f.body())
		req.sql = append(req.sql, m.String)
		req.answered = true
		whole = true
	case 'S', 'F': // sync, function call
		req.answered = true
		whole = true
	default:
		whole = true
	}
	return whole, err
}
