"""Says what to do about a finding in an evaluation, where the advice of its check is about training."""

IN_EVALUATION = {
    "truncation": "Find what cuts them: the calls' max_tokens, or the server's context length.",
    "loops": "Say in the observation that nothing changed, or end the episode after N repeats.",
    "infrastructure": "Fix the environment and evaluate again: the policy is not at fault where it failed.",
    "degenerate_text": "Read some of them, and evaluate with other sampling parameters.",
    "diversity": "Sample at a higher temperature, or ask each prompt once.",
    "never_solved": "Verify by hand that they are solvable.",
    "forgotten": "Compare rollouts of these tasks from before and after.",
    "signal_cliff": "Compare rollouts from before and after.",
    "constant_reward": "Call the reward functions by hand on a good and a bad completion: their rewards must differ.",
    "length": "Compare two answers of one length and different quality: their rewards must differ.",
    "proxy": "Compare two completions that differ in quality but not in this figure: their rewards must differ.",
    "reward_parts": "Judge each reward function by itself: nothing is trained on their sum.",
    "hacking": "Read the rollouts of highest reward in which the other function is low.",
}
"""By id of the diagnostic."""
