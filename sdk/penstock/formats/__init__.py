"""Classes that serve a model's file as it is: `penstock run penstock.formats.sklearn:Model`.

Read in this order: `files` (which file of a folder, and errors), `rows` (what models of tables share),
`sklearn`, `xgboost`, `lightgbm`, `onnx`, `encoder` (texts; also for a user's model), `huggingface`, `mlflow`
(which serves by the others). Each format needs its library, which the extra of that name brings. Nothing else
of the SDK imports this.
"""
