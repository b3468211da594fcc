package resolver

import "errors"

var errLeftOut = errors.New("this secret store is left out of this build of KEDA")

type leftOut struct{}

func NewAwsSecretManagerHandler(any) leftOut { return leftOut{} }
func NewAzureKeyVaultHandler(any) leftOut    { return leftOut{} }
func NewGCPSecretManagerHandler(any) leftOut { return leftOut{} }

func (leftOut) Initialize(...any) error     { return errLeftOut }
func (leftOut) Read(...any) (string, error) { return "", errLeftOut }
func (leftOut) Stop()                       {}
