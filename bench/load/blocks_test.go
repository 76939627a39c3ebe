package load_test

import (
	"testing"

	"github.com/postern-gateway/postern/bench/load"
)

// The first tenth of a stream in ten blocks has the same load as the whole stream: the same number
// of updates of each object, and no object that another tenth has. Two updates of one object are
// rarely so close that they fall into one batch.
func TestMake_blocks_eachHasLoadOfWhole(t *testing.T) {
	t.Parallel()
	const count, objects, blocks, updates = 20_000, 2000, 10, 10
	d := load.Make(load.Supply{Run: "blk", Count: count, BodySize: 500, Sources: []string{"a"}, Objects: objects,
		Blocks: blocks, Secret: []byte(secret)})
	bodies, _ := requests(t, d)
	all, seen, near := map[string]bool{}, map[string]int{}, 0
	last := map[string]int{}
	for i, body := range bodies {
		e := read(t, body).Data.Object
		seen[e.ID]++
		if e.Balance != seen[e.ID] {
			t.Fatalf("delivery %d is update %d of %s, want update %d", i, e.Balance, e.ID, seen[e.ID])
		}
		if before, ok := last[e.ID]; ok && i-before < objects/blocks/4 {
			near++
		}
		last[e.ID] = i
		if (i+1)%(count/blocks) != 0 {
			continue
		}
		if len(seen) != objects/blocks {
			t.Errorf("the block that ends at %d is about %d objects, want %d", i, len(seen), objects/blocks)
		}
		for id, n := range seen {
			if n != updates || all[id] {
				t.Fatalf("the block that ends at %d has %d events of %s, want %d; in an earlier block: %v", i, n, id,
					updates, all[id])
			}
			all[id] = true
		}
		clear(seen)
	}
	if most := count / 20; near > most { // at random it would be more than a fifth
		t.Errorf("%d of %d updates come soon after the one before", near, count)
	}
	for id, n := range d.Objects() {
		if n != updates {
			t.Fatalf("Objects: %s has %d updates, want %d", id, n, updates)
		}
	}
}

// Counts that cannot be divided evenly are divided nevertheless. With more blocks than objects,
// each object is a block.
func TestMake_unevenBlocks_haveAllEvents(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ count, objects, blocks, want int }{{103, 17, 5, 17}, {100, 3, 10, 3}, {10, 40, 4, 10},
		{5, 0, 2, 5}} {
		d := load.Make(load.Supply{Run: "odd", Count: c.count, BodySize: 500, Sources: []string{"a"},
			Objects: c.objects, Blocks: c.blocks, Secret: []byte(secret)})
		events := 0
		for _, n := range d.Objects() {
			events += n
		}
		if len(d.Objects()) != c.want || events != c.count {
			t.Errorf("%+v: %d events about %d objects", c, events, len(d.Objects()))
		}
	}
}
