// The smallest thing that can run in a pod. `pause` holds a pod's namespaces; `hostname` prints the pod's name; `serve`
// answers HTTP on port 8080, where / is the pod's name and /get?url=U is what U answers to this pod's service account.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"

func main() {
	name, _ := os.Hostname()
	if len(os.Args) > 1 && os.Args[1] == "hostname" {
		fmt.Println(name)
		return
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		go serve(name)
	}
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for { // as process 1, collect what the pod's other processes leave
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

func serve(name string) {
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) })
	http.HandleFunc("/get", func(w http.ResponseWriter, r *http.Request) {
		status, body, err := get(r.FormValue("url"))
		if err != nil {
			status, body = http.StatusBadGateway, []byte(err.Error())
		}
		w.WriteHeader(status)
		w.Write(body)
	})
	fmt.Println("serving on :8080")
	panic(http.ListenAndServe(":8080", nil))
}

func get(url string) (int, []byte, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	roots := x509.NewCertPool()
	if ca, err := os.ReadFile(serviceAccount + "ca.crt"); err == nil {
		roots.AppendCertsFromPEM(ca)
	}
	if token, err := os.ReadFile(serviceAccount + "token"); err == nil {
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	client := http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}},
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, body, err
}
