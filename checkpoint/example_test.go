package checkpoint_test

import (
	"context"
	"fmt"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/checkpoint"
	"github.com/aetomala/worklease/memory"
)

func Example() {
	type Progress struct{ Page int }
	ctx := context.Background()
	lease, err := worklease.New(memory.New(), worklease.Config{TTL: time.Minute, HolderID: "importer-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		token, err := lease.Acquire(ctx, "import")
		if err != nil {
			fmt.Println(err)
			return
		}
		prior, err := lease.Prior(ctx, token)
		if err != nil {
			fmt.Println(err)
			return
		}
		progress, err := checkpoint.Decode[Progress](checkpoint.JSON(), prior.State)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("going on from page", progress.Page)
		progress.Page += 10
		state, err := checkpoint.Encode(checkpoint.JSON(), progress)
		if err != nil {
			fmt.Println(err)
			return
		}
		if err := lease.Release(ctx, token, worklease.WithState(state)); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// going on from page 0
	// going on from page 10
}

func ExampleEncode() {
	data, err := checkpoint.Encode(checkpoint.JSON(), map[string]int{"page": 7})
	fmt.Println(string(data), err)
	// Output: {"page":7} <nil>
}

func ExampleDecode() {
	type Progress struct{ Page int }
	first, err := checkpoint.Decode[Progress](checkpoint.JSON(), nil) // nothing was saved yet
	fmt.Println(first.Page, err)
	next, err := checkpoint.Decode[Progress](checkpoint.JSON(), []byte(`{"Page":7}`))
	fmt.Println(next.Page, err)
	// Output:
	// 0 <nil>
	// 7 <nil>
}
