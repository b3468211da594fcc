"""The control plane: custom resources in, Kubernetes objects, settings and replica counts out."""
