// engine is a vLLM engine without a model, cheap enough that a router before it is what is measured.
//
// It answers the prefill leg with parameters, and the decode leg with a stream of tokens and a handle, in the shapes of
// vLLM 0.32 with kvloop's plugin: each event is one write. How many tokens, and the gap between them, the body says.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

const (
	blocks = 64
	tokens = 1024
)

type request struct {
	Stream    bool    `json:"stream"`
	MaxTokens int     `json:"max_tokens"`
	GapMS     float64 `json:"gap_ms"`
	KV        *struct {
		DoRemoteDecode bool            `json:"do_remote_decode"`
		RemoteBlockIDs json.RawMessage `json:"remote_block_ids"`
	} `json:"kv_transfer_params"`
}

var (
	boot    = fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	serial  atomic.Int64
	handles atomic.Int64 // prefill legs that came with decode's handle
)

// parameters are P's for D, or D's handle for P; the guard stands for both its forms.
func parameters(prefill bool) string {
	ids := make([]string, blocks)
	for i := range ids {
		ids[i] = fmt.Sprint(i + 1)
	}
	expiry := "null"
	if !prefill {
		expiry = "1516.9"
	}
	guard := fmt.Sprintf(`{"v":1,"bs":16,"stride":16,"n":%d,"chain":"%s","tail":"AAAA"}`, tokens, strings.Repeat("AAAA", blocks*16/3))
	if prefill {
		guard = fmt.Sprintf(`{"offered":%d,"verified":%d,"reason":"match"}`, tokens, tokens)
	}
	return fmt.Sprintf(`{"do_remote_prefill":%v,"do_remote_decode":%v,"remote_block_ids":[[%s]],"remote_engine_id":"%s",`+
		`"remote_request_id":"chatcmpl-%d","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"remote_num_tokens":%d,`+
		`"remote_blocks_expiry_time":%s,"transfer_mode":"pull","guard":%s}`,
		prefill, !prefill, strings.Join(ids, ","), boot, serial.Add(1), tokens, expiry, guard)
}

func generate(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	body := request{MaxTokens: 16}
	if err == nil {
		err = json.Unmarshal(raw, &body)
	}
	if err != nil {
		http.Error(w, `{"error":{"message":"bad body"}}`, http.StatusBadRequest)
		return
	}
	if body.KV != nil && body.KV.DoRemoteDecode {
		if len(body.KV.RemoteBlockIDs) > len("null") {
			handles.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"chatcmpl-%d","object":"chat.completion","model":"bench","choices":[{"index":0,"message":`+
			`{"role":"assistant","content":"tok"},"finish_reason":"length"}],"usage":{"prompt_tokens":%d},"kv_transfer_params":%s}`,
			serial.Add(1), tokens, parameters(true))
		return
	}
	stream(w, r, body)
}

func stream(w http.ResponseWriter, r *http.Request, body request) {
	head := fmt.Sprintf(`data: {"id":"chatcmpl-%d","object":"chat.completion.chunk","created":%d,"model":"bench","choices":[`,
		serial.Add(1), time.Now().Unix())
	event := []byte(head + `{"index":0,"delta":{"content":" tok"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
	flusher := w.(http.Flusher)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for i := range body.MaxTokens {
		if i > 0 && body.GapMS > 0 {
			time.Sleep(time.Duration(body.GapMS * float64(time.Millisecond)))
		}
		if _, err := w.Write(event); err != nil || r.Context().Err() != nil {
			return
		}
		flusher.Flush()
	}
	if body.KV != nil {
		io.WriteString(w, head+`],"kv_transfer_params":`+parameters(false)+"}\n\n")
		flusher.Flush()
	}
	io.WriteString(w, "data: [DONE]\n\n")
	flusher.Flush()
}

func main() {
	role := flag.String("role", "decode", "kv_role to report")
	flag.Parse()
	http.HandleFunc("/v1/chat/completions", generate)
	http.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/handles", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, handles.Load()) })
	http.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"object":"list","data":[{"id":"bench","object":"model","owned_by":"vllm","max_model_len":131072}]}`)
	})
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "kvloop_engine_info{plugin_version=\"0\",role=\"%s\",active=\"1\",block_size=\"16\",boot_id=\"%s\"} 1\n", *role, boot)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, nil))
}
