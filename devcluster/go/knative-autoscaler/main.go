// Command knative-autoscaler runs Knative's pod autoscaler (KPA) in simulated time.
//
// The first line of standard input is a JSON object of annotations, as on a Knative Service
// (autoscaling.knative.dev/target, say). Each further line is what an autoscaler sees at a time:
//
//	{"at": 12.0, "ready": 3, "concurrency": 41.5, "arrived": 38}
//
// seconds, ready pods, requests in them on average since the line before, and requests that arrived since
// then. There is to be one a second, as Knative scrapes. The answer to each is a line with the number of pods
// that Knative wants: decided every two seconds, as Knative's autoscaler ticks.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/networking/pkg/apis/networking"
	"knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/autoscaler/config"
	"knative.dev/serving/pkg/autoscaler/metrics"
	"knative.dev/serving/pkg/autoscaler/scaling"
	decider "knative.dev/serving/pkg/reconciler/autoscaling/kpa/resources"
	target "knative.dev/serving/pkg/reconciler/autoscaling/resources"
)

const tick = 2 * time.Second

var key = types.NamespacedName{Namespace: "default", Name: "model"}

type seen struct {
	At          float64 `json:"at"`
	Ready       int     `json:"ready"`
	Concurrency float64 `json:"concurrency"`
	Arrived     float64 `json:"arrived"`
}

// pods is how many are ready, for the autoscaler.
type pods struct{ ready int }

func (p *pods) ReadyCount() (int, error)    { return p.ready, nil }
func (p *pods) NotReadyCount() (int, error) { return 0, nil }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "knative-autoscaler:", err)
		os.Exit(1)
	}
}

func run() error {
	lines := bufio.NewScanner(os.Stdin)
	if !lines.Scan() {
		return fmt.Errorf("standard input has no line with annotations: %v", lines.Err())
	}
	pa := &v1alpha1.PodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Spec: v1alpha1.PodAutoscalerSpec{
			ProtocolType:   networking.ProtocolHTTP1,
			ScaleTargetRef: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: key.Name},
		},
	}
	if err := json.Unmarshal(lines.Bytes(), &pa.Annotations); err != nil {
		return fmt.Errorf("annotations: %w", err)
	}
	pa.Annotations["autoscaling.knative.dev/class"] = "kpa.autoscaling.knative.dev"
	pa.SetDefaults(context.Background())
	if err := pa.Validate(context.Background()); err != nil {
		return fmt.Errorf("annotations: %w", err)
	}
	defaults, err := config.NewConfigFromMap(map[string]string{})
	if err != nil {
		return err
	}
	// A scraper that is nil scrapes nothing: what it would have brought is recorded below.
	collector := metrics.NewMetricCollector(
		func(*v1alpha1.Metric, *zap.SugaredLogger) (metrics.StatsScraper, error) { return nil, nil },
		zap.NewNop().Sugar(),
	)
	if err := collector.CreateOrUpdate(target.MakeMetric(pa, "", defaults)); err != nil {
		return err
	}
	var scaler scaling.UniScaler
	counted := &pods{}
	// A new autoscaler panics from now on where more than one pod is ready; its windows have buckets of a second.
	began := time.Now().Truncate(time.Second)
	wanted, next := int32(0), time.Duration(0)
	for lines.Scan() {
		var look seen
		if err := json.Unmarshal(lines.Bytes(), &look); err != nil {
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
		counted.ready = look.Ready
		if scaler == nil {
			spec := decider.MakeDecider(pa, defaults).Spec
			scaler = scaling.New(
				*attribute.EmptySet(), noop.NewMeterProvider(), key.Namespace, key.Name, collector, counted, &spec,
			)
		}
		after := time.Duration(look.At * float64(time.Second))
		now := began.Add(after)
		collector.Record(key, now, metrics.Stat{
			AverageConcurrentRequests: look.Concurrency,
			RequestCount:              look.Arrived,
		})
		if after >= next {
			if result := scaler.Scale(zap.NewNop().Sugar(), now); result.ScaleValid {
				wanted = result.DesiredPodCount
			}
			next = after + tick
		}
		fmt.Println(wanted)
	}
	return lines.Err()
}
