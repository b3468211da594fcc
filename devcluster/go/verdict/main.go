// Command verdict says what other tools make of Kubernetes objects: kstatus (which Flux and kpt read by) and
// a health.lua of Argo CD, run in the interpreter that Argo CD embeds.
//
// It reads a YAML list of objects from standard input and prints a JSON list, one entry an object, in order.
// The flag -health names the script; without it there is no health.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

type verdict struct {
	Status        string `json:"status"`
	Message       string `json:"message"`
	Health        string `json:"health,omitempty"`
	HealthMessage string `json:"healthMessage,omitempty"`
}

func main() {
	script := flag.String("health", "", "a health.lua")
	flag.Parse()
	if err := run(*script); err != nil {
		fmt.Fprintln(os.Stderr, "verdict:", err)
		os.Exit(1)
	}
}

func run(script string) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var raws []json.RawMessage
	if err := yaml.Unmarshal(text, &raws); err != nil {
		return err
	}
	found := make([]verdict, 0, len(raws))
	for _, raw := range raws {
		// Numbers must be int64 as the API machinery has them, so not by way of a plain map.
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON(raw); err != nil {
			return err
		}
		computed, err := status.Compute(&object)
		if err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		one := verdict{Status: string(computed.Status), Message: computed.Message}
		if script != "" {
			if err := health(script, &object, &one); err != nil {
				return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
			}
		}
		found = append(found, one)
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

// health runs a script as Argo CD does: the object is the global obj, and the result a table with status and message.
func health(path string, object *unstructured.Unstructured, into *verdict) error {
	script, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}, {lua.StringLibName, lua.OpenString}} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(library.open), Protect: true}, lua.LString(library.name)); err != nil {
			return err
		}
	}
	state.SetGlobal("obj", value(state, object.Object))
	if err := state.DoString(string(script)); err != nil {
		return err
	}
	answer, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return fmt.Errorf("%s: expected a table, found %s", path, state.Get(-1).Type())
	}
	into.Health = lua.LVAsString(answer.RawGetString("status"))
	into.HealthMessage = lua.LVAsString(answer.RawGetString("message"))
	return nil
}

func value(state *lua.LState, from any) lua.LValue {
	switch typed := from.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, member := range typed {
			table.RawSetString(key, value(state, member))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, member := range typed {
			table.Append(value(state, member))
		}
		return table
	case string:
		return lua.LString(typed)
	case bool:
		return lua.LBool(typed)
	case int64:
		return lua.LNumber(typed)
	case float64:
		return lua.LNumber(typed)
	}
	return lua.LNil
}
