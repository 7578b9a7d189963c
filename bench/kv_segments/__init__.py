"""KV segments at work: multi-agent workflows whose calls reuse each other's messages, and what that saves and costs."""
