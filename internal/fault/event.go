package fault

import (
	"encoding/json"
	"fmt"
)

// Event is one line between a parent and its child, in either direction.
type Event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data,omitempty"`
}

// Decode stores the event's data in v, as [json.Unmarshal] does.
func (e Event) Decode(v any) error { return json.Unmarshal(e.Data, v) }

// String returns the name and the data, for logs.
func (e Event) String() string { return fmt.Sprintf("%s %s", e.Name, e.Data) }

// Named matches the events of that name.
func Named(name string) func(Event) bool {
	return func(e Event) bool { return e.Name == name }
}

// line encodes an event. Nil data is left out.
func line(name string, data any) ([]byte, error) {
	e := Event{Name: name}
	if data != nil {
		raw, err := json.Marshal(data)
		if err != nil {
			return nil, err
		}
		e.Data = raw
	}
	raw, err := json.Marshal(e)
	return append(raw, '\n'), err
}

// parseLine reports false for a line that is no event: a print, a stack trace.
func parseLine(raw []byte) (Event, bool) {
	var e Event
	err := json.Unmarshal(raw, &e)
	return e, err == nil && e.Name != ""
}
