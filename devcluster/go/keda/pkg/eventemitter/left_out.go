package eventemitter

import "errors"

func NewAzureEventGridTopicHandler(...any) (EventDataHandler, error) {
	return nil, errors.New("Azure's event grid is left out of this build of KEDA")
}
