module penstock.dev/devcluster/keda

go 1.26.0

tool (
	github.com/kedacore/keda/v2/cmd/adapter
	github.com/kedacore/keda/v2/cmd/operator
)

require github.com/kedacore/keda/v2 v2.21.0 // indirect
