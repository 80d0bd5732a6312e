"""The dialect of KServe: LLMInferenceService and LLMInferenceServiceConfig of serving.kserve.io."""
