// Command hpa runs Kubernetes' HorizontalPodAutoscaler controller in simulated time.
//
// The first line of standard input is the spec of a HorizontalPodAutoscaler in JSON. Each further line is what
// there is at a time:
//
//	{"at": 12.0, "replicas": 4, "external": {"load": 41}, "pods": {"model-1": {"ready": true, "load": 21}}}
//
// seconds, replicas that are to be, external metrics, and pods that are there with the metric `load`, of those
// that report it. The answer to each is a line with the replicas that the controller has written last, or those
// of the line where it has written none.
//
// The controller is the real one, with its own period of 15 s, before an API that is kept in memory: its clock
// is that of a synctest bubble, which advances while all wait.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	scalefake "k8s.io/client-go/scale/fake"
	core "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
)

const (
	namespace = "default"
	name      = "model"
	// As the controller manager's flags have them by default.
	period        = 15 * time.Second
	stabilisation = 5 * time.Minute
	tolerance     = 0.1
	initialCPU    = 5 * time.Minute
	initialReady  = 30 * time.Second

	early = 500 * time.Millisecond
)

type pod struct {
	Ready bool     `json:"ready"`
	Load  *float64 `json:"load"`
}

type seen struct {
	At       float64            `json:"at"`
	Replicas int32              `json:"replicas"`
	External map[string]float64 `json:"external"`
	Pods     map[string]pod     `json:"pods"`
}

// state is what there is now: the metrics client and the /scale subresource of the controller.
type state struct {
	lock sync.Mutex
	now  seen
}

func (s *state) GetResourceMetric(
	context.Context, v1.ResourceName, string, labels.Selector, string,
) (metrics.PodMetricsInfo, time.Time, error) {
	return nil, time.Time{}, errors.New("there are no resource metrics here")
}

func (s *state) GetObjectMetric(
	string, string, *autoscalingv2.CrossVersionObjectReference, labels.Selector,
) (int64, time.Time, error) {
	return 0, time.Time{}, errors.New("there are no object metrics here")
}

func (s *state) GetRawMetric(
	string, string, labels.Selector, labels.Selector,
) (metrics.PodMetricsInfo, time.Time, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	info := metrics.PodMetricsInfo{}
	for name, pod := range s.now.Pods {
		if pod.Load != nil {
			info[name] = metrics.PodMetric{Timestamp: time.Now(), Window: time.Minute, Value: int64(*pod.Load * 1000)}
		}
	}
	if len(info) == 0 {
		return nil, time.Time{}, errors.New("no pod reports")
	}
	return info, time.Now(), nil
}

func (s *state) GetExternalMetric(name, _ string, _ labels.Selector) ([]int64, time.Time, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	value, ok := s.now.External[name]
	if !ok {
		return nil, time.Time{}, fmt.Errorf("there is no metric %s here", name)
	}
	return []int64{int64(value * 1000)}, time.Now(), nil
}

func (s *state) scale() *autoscalingv1.Scale {
	s.lock.Lock()
	defer s.lock.Unlock()
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       autoscalingv1.ScaleSpec{Replicas: s.now.Replicas},
		Status:     autoscalingv1.ScaleStatus{Replicas: int32(len(s.now.Pods)), Selector: "app=model"},
	}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	// Errors alone go to standard error.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if !lines.Scan() {
		fail(fmt.Errorf("standard input has no line with a spec: %v", lines.Err()))
	}
	if err := json.Unmarshal(lines.Bytes(), &hpa.Spec); err != nil {
		fail(fmt.Errorf("spec: %w", err))
	}
	hpa.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}
	// A bubble takes a test, and a program may have one: the only way to it that is public.
	testing.Init()
	testing.Main(
		func(string, string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: "hpa", F: func(t *testing.T) {
			synctest.Test(t, func(*testing.T) {
				if err := run(lines, hpa); err != nil {
					fail(err)
				}
				// Informers and workers never end: nobody waits for them.
				os.Exit(0)
			})
		}}}, nil, nil,
	)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "hpa:", err)
	os.Exit(1)
}

func run(lines *bufio.Scanner, hpa *autoscalingv2.HorizontalPodAutoscaler) error {
	ctx := context.Background()
	there := &state{}
	client := fake.NewClientset(hpa)
	scales := &scalefake.FakeScaleClient{}
	scales.AddReactor("get", "deployments", func(core.Action) (bool, runtime.Object, error) {
		return true, there.scale(), nil
	})
	scales.AddReactor("update", "deployments", func(action core.Action) (bool, runtime.Object, error) {
		written := action.(core.UpdateAction).GetObject().(*autoscalingv1.Scale)
		there.lock.Lock()
		there.now.Replicas = written.Spec.Replicas
		there.lock.Unlock()
		return true, written, nil
	})
	mapper := apimeta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: "apps", Version: "v1"}})
	mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, apimeta.RESTScopeNamespace)
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods()
	controller := podautoscaler.NewHorizontalController(
		ctx, client.CoreV1(), scales, client.AutoscalingV2(), mapper, there,
		factory.Autoscaling().V2().HorizontalPodAutoscalers(), pods,
		period, stabilisation, tolerance, initialCPU, initialReady,
	)
	known := pods.Informer().GetStore() // Written straight: nothing else watches pods.
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	// A line is half a second early, and answered after that, so that the controller never looks at its moment.
	began := time.Now().Add(-early)
	running := false
	for lines.Scan() {
		var look seen
		if err := json.Unmarshal(lines.Bytes(), &look); err != nil {
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
		time.Sleep(time.Until(began.Add(time.Duration(look.At * float64(time.Second)))))
		there.lock.Lock()
		there.now = look
		there.lock.Unlock()
		if err := keep(known, look.Pods); err != nil {
			return err
		}
		if !running {
			running = true
			go controller.Run(ctx, 1)
		}
		time.Sleep(early + time.Millisecond)
		synctest.Wait()
		fmt.Println(there.scale().Spec.Replicas)
	}
	return lines.Err()
}

// store is where an informer keeps pods.
type store interface {
	List() []any
	Add(object any) error
	Delete(object any) error
}

func keep(known store, pods map[string]pod) error {
	for _, object := range known.List() {
		if _, there := pods[object.(*v1.Pod).Name]; !there {
			if err := known.Delete(object); err != nil {
				return err
			}
		}
	}
	for name, pod := range pods {
		phase, ready := v1.PodPending, v1.ConditionFalse
		if pod.Ready {
			phase, ready = v1.PodRunning, v1.ConditionTrue
		}
		err := known.Add(&v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "model"}},
			Status: v1.PodStatus{
				Phase:      phase,
				Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}},
			},
		})
		if err != nil {
			return err
		}
	}
	return nil
}
