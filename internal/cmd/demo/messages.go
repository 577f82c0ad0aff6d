package main

import "time"

// Events between the parent and its workers.
const (
	// To a worker.
	eventBegin   = "begin"    // brief: the first one
	eventStandBy = "stand by" // run every work, not the worker's share alone
	eventPace    = "pace"     // float64: how far works may be
	eventRest    = "rest"     // point: the next batch stops there; "" calls that off
	eventGo      = "go"       // the batch at rest goes on

	// From a worker.
	eventAcquired = "acquired" // acquired
	eventStepped  = "stepped"  // stepped: a batch was committed
	eventResting  = "resting"  // resting
	eventRefused  = "refused"  // refused
	eventLeaving  = "leaving"  // leaving: the work function is about to return
	eventRetired  = "retired"  // string: the work with that ID is done for good
)

// A brief is what a worker must know.
type brief struct {
	Name     string
	Database string
	Schema   string
	TTL      time.Duration
	Naive    bool
	Works    []assignment
	Share    []string // the work IDs it begins with
}

// An assignment is one work and how it is done.
type assignment struct {
	Source source
	Batch  int
	Speed  float64
}

// allowed is the number of lines that may be imported at a pace.
func (a assignment) allowed(pace float64) int {
	return min(int(pace*a.Speed*float64(a.Source.Lines)), a.Source.Lines)
}

// A point is where a batch can be made to rest.
type point string

const (
	inside  point = "inside"  // between its rows and its checkpoint
	outside point = "outside" // before it begins
)

type acquired struct {
	Work        string
	Token       uint64
	Position    int
	Exit        string // of the prior owner
	PriorHolder string
	PriorToken  uint64
	At          time.Time
}

type stepped struct {
	Work     string
	Token    uint64
	Position int
}

type resting struct {
	Work  string
	Token uint64
	Point point
}

type refused struct {
	Work  string
	Token uint64
	By    string // byDatabase or byContext
	Why   string // SQLSTATE, or what the error Is
}

const (
	byDatabase = "database"
	byContext  = "dead context"
)

type leaving struct {
	Work  string
	Token uint64
	At    time.Time
}
