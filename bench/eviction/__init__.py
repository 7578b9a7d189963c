"""What an eviction policy is worth: replays of agent traffic on SGLang's radix cache, beside the clairvoyant bound."""
