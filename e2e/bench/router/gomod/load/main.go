// load holds conversations with an OpenAI-style server, and prints what they took as JSON.
//
// Every turn's request is as long whatever -tokens is (the history holds a fixed reply), so that two runs that differ in
// -tokens only differ in the number of streamed tokens only.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	turns       = 5
	systemBytes = 4096
	userBytes   = 600
	replyBytes  = 800
)

var (
	url    = flag.String("url", "", "base URL")
	at     = flag.Int("c", 32, "conversations at a time")
	rounds = flag.Int("rounds", 1, "conversations one after another, each time")
	tokens = flag.Int("tokens", 1, "tokens a turn")
	gap    = flag.Float64("gap-ms", 0, "between tokens")
)

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type tally struct {
	Turns  int    `json:"turns"`
	Failed int    `json:"failed"`
	Why    string `json:"why,omitempty"` // the last failure
	Leaks  int    `json:"leaks"`         // turns that showed kv_transfer_params
	first  []float64
	gaps   []float64
}

func text(n int) string { return strings.Repeat("lorem ipsum dolor ", n/18+1)[:n] }

// turn sends one request and reads its stream; times are in milliseconds.
func (t *tally) turn(client *http.Client, body []byte) error {
	begun := time.Now()
	answer, err := client.Post(*url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
		return fmt.Errorf("status %d: %s", answer.StatusCode, why)
	}
	lines, seen, done, leak, last := bufio.NewReaderSize(answer.Body, 64<<10), 0, false, false, begun
	for {
		line, err := lines.ReadSlice('\n')
		if bytes.HasPrefix(line, []byte("data: [DONE]")) {
			done = true
		} else if bytes.HasPrefix(line, []byte("data: ")) {
			leak = leak || bytes.Contains(line, []byte("kv_transfer_params"))
			if bytes.Contains(line, []byte(`"content":" tok"`)) {
				now := time.Now()
				since := now.Sub(last).Seconds() * 1000
				if seen == 0 {
					t.first = append(t.first, since)
				} else {
					t.gaps = append(t.gaps, since)
				}
				seen, last = seen+1, now
			}
		}
		if err == io.EOF {
			break
		} else if err != nil && err != bufio.ErrBufferFull {
			return err
		}
	}
	if leak {
		t.Leaks++
	}
	if seen != *tokens || !done {
		return fmt.Errorf("%d of %d tokens, done: %v", seen, *tokens, done)
	}
	return nil
}

func (t *tally) conversation(client *http.Client, name string) {
	messages := []message{{"system", name + text(systemBytes)}}
	for i := range turns {
		messages = append(messages, message{"user", fmt.Sprint(i, text(userBytes))})
		body, _ := json.Marshal(map[string]any{
			"model": "bench", "messages": messages, "stream": true, "max_tokens": *tokens, "temperature": 0, "gap_ms": *gap,
		})
		t.Turns++
		if err := t.turn(client, body); err != nil {
			t.Failed++
			t.Why = err.Error()
		}
		messages = append(messages, message{"assistant", text(replyBytes)})
	}
}

func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return values[min(len(values)-1, int(q*float64(len(values))))]
}

func main() {
	flag.Parse()
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: *at + 8, DisableCompression: true}}
	workers, begun := make([]tally, *at), time.Now()
	var group sync.WaitGroup
	for i := range workers {
		group.Go(func() {
			for round := range *rounds {
				workers[i].conversation(client, fmt.Sprint(begun.UnixNano(), "-", i, "-", round, " "))
			}
		})
	}
	group.Wait()
	seconds, all := time.Since(begun).Seconds(), tally{}
	for _, w := range workers {
		all.Turns, all.Failed, all.Leaks = all.Turns+w.Turns, all.Failed+w.Failed, all.Leaks+w.Leaks
		all.first, all.gaps = append(all.first, w.first...), append(all.gaps, w.gaps...)
		if w.Why != "" {
			all.Why = w.Why
		}
	}
	slices.Sort(all.first)
	slices.Sort(all.gaps)
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"turns": all.Turns, "failed": all.Failed, "why": all.Why, "leaks": all.Leaks, "seconds": seconds,
		"first_p50_ms": quantile(all.first, .5), "first_p99_ms": quantile(all.first, .99), "gap_p99_ms": quantile(all.gaps, .99),
	})
}
