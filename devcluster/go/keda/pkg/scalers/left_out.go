package scalers

// KEDA has it in the file of a scaler that is left out.
const externalMetricType = "External"
