"""The routing to the pods of an LLMInferenceService: routes, pools, the endpoint picker."""
