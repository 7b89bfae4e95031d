// kstatus reads Kubernetes objects as JSON and prints, a line each, what Flux and kpt make of them.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func main() {
	log.SetFlags(0)
	for decoder := json.NewDecoder(os.Stdin); ; {
		var object unstructured.Unstructured
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		result, err := status.Compute(&object)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(result.Status)
	}
}
