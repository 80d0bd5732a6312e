"""What was applied to each service, when and on whose edit: ControllerRevisions, which go with their service."""
