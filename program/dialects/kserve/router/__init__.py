"""The way to the pods of an LLMInferenceService: routes, pools, the endpoint picker."""
