package suite

import (
	"testing"
	"time"
)

// The full plan has every row that a bound uses. No row name is duplicated, and both plans stay
// within the promised times.
func TestFull_hasRowsOfAllBounds(t *testing.T) {
	t.Parallel()
	rows := map[string]bool{}
	full := Full(0)
	for _, row := range full {
		if rows[row.Name] {
			t.Errorf("the plan has row %s twice", row.Name)
		}
		rows[row.Name] = true
		if row.Takes <= 0 || row.About == "" || row.Chapter == "" {
			t.Errorf("row %s lacks its duration, description or chapter", row.Name)
		}
	}
	for _, b := range Bounds() {
		for _, row := range b.Rows {
			if !rows[row] {
				t.Errorf("bound %q uses row %s, which the plan does not have", b.What, row)
			}
		}
	}
	if d := Estimate(full); d > 85*time.Minute {
		t.Errorf("the full plan takes %s", d)
	}
	// the rest of three minutes is for building the programs
	if d := Estimate(Quick(0)); d > 150*time.Second {
		t.Errorf("the quick plan takes %s", d)
	}
}

func TestChoose_namesAndPatterns_returnsRows(t *testing.T) {
	t.Parallel()
	rows := Full(0)
	chosen, err := Choose(rows, []string{"starts", "offered-*"})
	if err != nil {
		t.Fatal(err)
	}
	if len(chosen) != len(OfferedShares)+1 || chosen[len(chosen)-1].Name != "starts" {
		t.Errorf("chose %d rows", len(chosen))
	}
	if _, err := Choose(rows, []string{"starts", "offerd-*"}); err == nil {
		t.Error("Choose accepted a name that no row has")
	}
}
