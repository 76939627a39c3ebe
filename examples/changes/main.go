// Keeps a copy of the mirror's states in the file that the argument names.
package main

import (
	"encoding/json"
	"errors"
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
		Deleted         bool            // also if no event makes the object any more
	}
	Next    string                     `json:"next_cursor"`
	Objects map[string]json.RawMessage // only in the file
}

func main() {
	own := page{Objects: map[string]json.RawMessage{}}
	text, _ := os.ReadFile(os.Args[1])
	_ = json.Unmarshal(text, &own)
	for range time.Tick(time.Second / 4) { // so that it tries again soon, and not at once
		req, _ := http.NewRequest("GET", os.Getenv("POSTERN_URL")+"/api/v1/changes?wait=30s&after="+own.Next, nil)
		req.Header.Set("Authorization", "Bearer "+os.Getenv("POSTERN_TOKEN"))
		var found page
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			err = errors.Join(json.NewDecoder(res.Body).Decode(&found), res.Body.Close())
		}
		if err == nil && res.StatusCode == http.StatusGone { // the mirror was restored: start again
			own = page{Objects: map[string]json.RawMessage{}}
		} else if err == nil && res.StatusCode == http.StatusOK { // 401 means that the token is wrong
			for _, c := range found.Items {
				key := c.Source + " " + c.Account + " " + c.Type + " " + c.ID
				if own.Objects[key] = c.State; c.Deleted {
					delete(own.Objects, key)
				}
			}
			own.Next = found.Next // stored with the states: after a kill nothing is missing
			if text, _ = json.Marshal(own); os.WriteFile(os.Args[1]+".new", text, 0o600) == nil {
				_ = os.Rename(os.Args[1]+".new", os.Args[1])
			}
		}
	}
}
