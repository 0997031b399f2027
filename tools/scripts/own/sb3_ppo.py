# SPDX-License-Identifier: Apache-2.0
"""stable-baselines3's PPO on CartPole: sb3_ppo.py neuron|cpu."""

import sys

from stable_baselines3 import PPO

model = PPO("MlpPolicy", "CartPole-v1", device=sys.argv[1], n_steps=64, batch_size=32, n_epochs=2, seed=0)
for _ in range(2):
    model.learn(64, reset_num_timesteps=False)
    print(f"loss: {model.logger.name_to_value['train/loss']:.6f}")
