package suite

// Status is the result of comparing a bound.
type Status string

// The results of a bound. Missing means that its rows were not run. Idle means that the bound does
// not apply to this machine.
const (
	Pass    Status = "pass"
	Fail    Status = "FAIL"
	Missing Status = "not measured"
	Idle    Status = "not asked of this machine"
)

// Verdict is a bound with the measured figure.
type Verdict struct {
	What    string  `json:"what"`
	Formula string  `json:"formula"`
	Unit    string  `json:"unit"`
	Least   bool    `json:"at_least"`
	Limit   float64 `json:"limit"`
	Aim     float64 `json:"aim,omitempty"`
	Figure  Figure  `json:"figure"`
	Status  Status  `json:"status"`
	// Aimed reports whether the figure reaches the aim too.
	Aimed bool `json:"aimed"`
}

// Judge compares samples with bounds.
func Judge(s Samples, bounds []bound) []Verdict {
	verdicts := make([]Verdict, len(bounds))
	for i, b := range bounds {
		verdicts[i] = judge(s, b)
	}
	return verdicts
}

func judge(s Samples, b bound) Verdict {
	f := b.Figure(s)
	v := Verdict{What: b.What, Formula: b.Formula, Unit: b.Unit, Least: b.Least, Limit: b.Limit, Aim: b.Aim, Figure: f}
	switch {
	case f.Rounds == 0:
		v.Status = Missing
	case b.Applies != nil && !b.Applies(s):
		v.Status = Idle
	case holds(f.Median, b.Least, b.Limit):
		v.Status = Pass
	default:
		v.Status = Fail
	}
	v.Aimed = v.Status == Pass && (b.Aim == 0 || holds(f.Median, b.Least, b.Aim))
	return v
}

func holds(figure float64, least bool, limit float64) bool {
	if least {
		return figure >= limit
	}
	return figure <= limit
}

// Failed counts the bounds that do not hold.
func Failed(verdicts []Verdict) int { return count(verdicts, Fail) }

// Unmeasured counts the bounds whose figures were not measured.
func Unmeasured(verdicts []Verdict) int { return count(verdicts, Missing) }

func count(verdicts []Verdict, status Status) int {
	n := 0
	for _, v := range verdicts {
		if v.Status == status {
			n++
		}
	}
	return n
}
