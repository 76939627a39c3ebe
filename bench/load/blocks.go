package load

import "math/rand/v2"

// inBlocks returns the object of each delivery for a supply in blocks. There are at most as many
// blocks as objects.
func inBlocks(count, objects, blocks int) []int32 {
	blocks = min(blocks, objects)
	rng, order := rand.New(rand.NewPCG(20261121, 7)), make([]int32, 0, count)
	for block := range blocks {
		first, after := objects*block/blocks, objects*(block+1)/blocks
		for until := count * (block + 1) / blocks; len(order) < until; {
			for _, n := range rng.Perm(after - first)[:min(after-first, until-len(order))] {
				order = append(order, int32(first+n))
			}
		}
	}
	return order
}
