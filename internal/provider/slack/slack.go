// Package slack is the provider Slack: its Events API, its slash commands and its interactive
// payloads. The first is JSON, the others are forms. All are signed the same way, and the user who
// caused them may see the response.
package slack

import (
	"embed"
	"net/http"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed samples/*
var files embed.FS

// New returns the provider.
func New() *declared.Provider { return declared.New(spec) }

var spec = declared.Spec{
	Name: "slack", Title: "Slack",
	Schemes: []*signature.Scheme{{
		Name:      "slack-v0",
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Slack-Signature")}, Prefix: "v0="},
		Timestamp: &signature.Clock{From: signature.MustRef("header:X-Slack-Request-Timestamp")},
		Message:   signature.MustTemplate("v0:{timestamp}:{body}"),
	}},
	Headers: []string{"X-Slack-Retry-Num", "X-Slack-Retry-Reason"},
	Events: declared.Events{
		Bodies: []declared.BodyForm{declared.JSON, declared.Payload, declared.Form},
		Key:    declared.Templates("{json:event_id}"),
		// An event has its own type. A slash command has its command as type, and an interactive
		// payload the payload's type.
		Type:       declared.Templates("{json:event.type}", "{json:command}", "{json:type}"),
		Account:    declared.Templates("{json:team_id}", "{json:team.id}"),
		OccurredAt: declared.TimeAt("json:event_time", declared.Seconds),
	},
	Objects: []declared.Object{
		{Events: []string{"team_join", "user_change"}, Type: declared.Templates("user"),
			ID: declared.Templates("{json:event.user.id}"), State: "event.user"},
		{Events: []string{"channel_deleted"}, Type: declared.Templates("channel"),
			ID: declared.Templates("{json:event.channel}"), Deletes: []string{"channel_deleted"}},
		{Events: []string{"channel_created", "channel_rename"}, Type: declared.Templates("channel"),
			ID:      declared.Templates("{json:event.channel.id}"),
			Partial: "the event contains only the channel's name"},
		{Events: []string{"channel_archive", "channel_unarchive"}, Type: declared.Templates("channel"),
			ID: declared.Templates("{json:event.channel}")},
		{Events: []string{"message"}, Ignored: "a message is not a mirrored object, and its changes are separate " +
			"messages"},
	},
	Handshake: handshake,
	Acknowledge: func(*provider.Source, *provider.Delivery) *provider.Reply {
		return &provider.Reply{Status: http.StatusOK}
	},
	Samples: []provider.Sample{
		declared.LoadSample(files, "team_join", "samples/team_join.json"),
		declared.LoadSample(files, "user_change", "samples/user_change.json"),
		declared.LoadSample(files, "channel_rename", "samples/channel_rename.json"),
		declared.LoadSample(files, "channel_deleted", "samples/channel_deleted.json"),
		declared.LoadSample(files, "message", "samples/message.json"),
		declared.LoadSample(files, "/deploy", "samples/command.form"),
		declared.LoadSample(files, "block_actions", "samples/block_actions.form"),
	},
	Variants: declared.Variants{
		IDs:     []string{"event_id", "trigger_id"},
		Times:   []declared.Time{*declared.TimeAt("json:event_time", declared.Seconds)},
		Objects: []string{"event.user.id", "event.channel.id", "event.channel"},
		Counter: "event.user.real_name",
	},
	Docs: provider.Docs{
		Setup: "In the app's settings, copy *Basic Information > Signing Secret*. Configure the source before you " +
			"enter the ingest URL under *Event Subscriptions*, because Slack immediately sends a challenge. The " +
			"same URL serves *Slash Commands* and *Interactivity*. Each workspace is an account. List those that " +
			"you accept under `accounts`, or leave `accounts` out to accept all. Every delivery gets an empty 200, " +
			"because Slack shows the body of some responses to a user. Send any other response to a command to its " +
			"`response_url`.",
		Key: "`{json:event_id}`, which is the same when Slack retries. Slash commands and interactive payloads " +
			"have no id. Their key is a digest of the content, which contains a unique `trigger_id`.",
		Unconfirmed: []string{
			"`event.user` of `team_join` and `user_change` is the whole user. Different changes in one second make " +
				"the user ambiguous.",
			"Ids of channels are never reused. Postern does not rely on this: a deleted channel returns if a later " +
				"event says so.",
			"We do not know how often and when Slack retries. Postern stores `X-Slack-Retry-Num` and " +
				"`X-Slack-Retry-Reason`.",
		},
		Links: []string{"https://docs.slack.dev/authentication/verifying-requests-from-slack",
			"https://docs.slack.dev/apis/events-api"},
	},
}

// maxChallenge is far above what Slack sends.
const maxChallenge = 1024

// handshake responds to the verification of an address with its challenge. Slack signs that request
// like any other. The response contains nothing computed with a key, so it reveals nothing.
func handshake(_ *provider.Source, d *provider.Delivery) *provider.Reply {
	body, err := canonical.Parse(d.Body)
	if err != nil {
		return nil
	}
	kind, _ := body.Get("type").Text()
	challenge, _ := body.Get("challenge").Text()
	if kind != "url_verification" || challenge == "" || len(challenge) > maxChallenge {
		return nil
	}
	return &provider.Reply{ContentType: "text/plain; charset=utf-8", Body: []byte(challenge)}
}
