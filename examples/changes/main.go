// Keeps a copy of the mirror's states in the file that the argument names.
package main

import (
	"encoding/json"
	"net/http"
	"os"
	"time"
)

type page struct {
	Items []struct {
		Source, Account string
		Type            string          `json:"object_type"`
		ID              string          `json:"object_id"`
		State           json.RawMessage // null if it was redacted: the copy loses it too
	}
	Next    string                     `json:"next_cursor"`
	Objects map[string]json.RawMessage // only in the file
}

func main() {
	own := page{Objects: map[string]json.RawMessage{}}
	text, _ := os.ReadFile(os.Args[1])
	_ = json.Unmarshal(text, &own)
	for {
		req, _ := http.NewRequest("GET", os.Getenv("POSTERN_URL")+"/api/v1/changes?wait=30s&after="+own.Next, nil)
		req.Header.Set("Authorization", "Bearer "+os.Getenv("POSTERN_TOKEN"))
		var found page
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			err = json.NewDecoder(res.Body).Decode(&found)
			_ = res.Body.Close()
		}
		switch {
		case err == nil && res.StatusCode == http.StatusGone: // the mirror was restored: start again
			own = page{Objects: map[string]json.RawMessage{}}
		case err != nil || res.StatusCode != http.StatusOK:
			time.Sleep(time.Second) // e.g. 401: print the status if the token may be wrong
		default:
			for _, c := range found.Items {
				own.Objects[c.Source+" "+c.Account+" "+c.Type+" "+c.ID] = c.State
			}
			own.Next = found.Next // stored with the states: after a kill nothing is missing
			text, _ = json.Marshal(own)
			if os.WriteFile(os.Args[1]+".new", text, 0o600) == nil {
				_ = os.Rename(os.Args[1]+".new", os.Args[1])
			}
		}
	}
}
