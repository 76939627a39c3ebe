package plan_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/bench/plan"
)

// Every row that a bound is made of is run by the full plan, no name comes twice, and it all takes
// no more than was promised.
func TestFullPlanHasWhatBoundsNeed(t *testing.T) {
	t.Parallel()
	rows := map[string]bool{}
	full := plan.Full(0)
	for _, row := range full {
		if rows[row.Name] {
			t.Errorf("row %s comes twice", row.Name)
		}
		rows[row.Name] = true
		if row.Takes <= 0 || row.About == "" || row.Chapter == "" {
			t.Errorf("row %s says not how long it takes, what it is about or where it belongs", row.Name)
		}
	}
	for _, b := range plan.Bounds() {
		for _, row := range b.Rows {
			if !rows[row] {
				t.Errorf("bound %q is made of row %s, which the plan does not have", b.What, row)
			}
		}
	}
	if d := plan.Estimate(full); d > 85*time.Minute {
		t.Errorf("the full plan takes %s", d)
	}
	if d := plan.Estimate(plan.Quick(0)); d > 150*time.Second { // and the programs must be built
		t.Errorf("the quick plan takes %s", d)
	}
}

func TestRowsAreChosenByName(t *testing.T) {
	t.Parallel()
	rows := plan.Full(0)
	chosen, err := plan.Choose(rows, []string{"starts", "offered-*"})
	if err != nil {
		t.Fatal(err)
	}
	if len(chosen) != len(plan.OfferedShares)+1 || chosen[len(chosen)-1].Name != "starts" {
		t.Errorf("chose %d rows", len(chosen))
	}
	if _, err := plan.Choose(rows, []string{"starts", "offerd-*"}); err == nil {
		t.Error("a name that no row has is accepted")
	}
}
