"""What the loop knows of the cluster: cached objects, and the services that a change concerns."""
