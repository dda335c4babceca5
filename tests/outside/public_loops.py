"""Public scripts that are run as they are, on gloo: which, with which arguments, on which data of ours.

Nothing of them is committed. The command takes a folder with a snapshot of each repository under its own name
(``nanoGPT/``, ``accelerate/`` ...) and a Python in which ``packages`` can be imported beside torch (tried with timm
1.0, transformers 5.24, accelerate 1.15, trl 1.16, datasets 5.2, evaluate 0.4, gymnasium 0.29.1, ale-py 0.10.2).
Scripts that name GPUs only run with the names of devices turned to cpu from outside (``inject/on_cpu.py``); no file
is edited.

Left out: minGPT's projects and timm's validate.py (one process), pytorch/examples' imagenet (no process group's model
on the CPU), tensor_parallelism and FSDP2 (end after ten steps), rpc (no process group), accelerate's cv examples
(weights from a hub).
"""

from __future__ import annotations

from tests.outside.kinds import Kind, known, later, new

ZERO = (0,)
STEPS = known("forward", "backward", "data")
_TINY_GPT = ("--n_layer=2", "--n_head=2", "--n_embd=64", "--block_size=64", "--batch_size=4")
_TRL = (
    "--model_name_or_path=tiny", "--use_cpu", "--output_dir=out", "--per_device_train_batch_size=2",
    "--save_steps=40", "--save_total_limit=1", "--report_to=none", "--bf16=False", "--gradient_checkpointing=False",
)  # fmt: skip
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
ON_CPU = {"OUTSIDE_ON_CPU": "devices"}
ACCELERATE = ("accelerate", "transformers", "datasets", "evaluate")
TRL = ("trl", "transformers", "datasets")

PUBLIC: tuple[Kind, ...] = (
    Kind(
        name="nanogpt", repository="nanoGPT", script="train.py", packages=("numpy",), data=("tokens",),
        links=("configurator.py",), environment=ON_CPU,
        arguments=("--backend=gloo", "--device=cpu", "--compile=False", "--dtype=float32", "--dataset=tokens",
                   *_TINY_GPT, "--gradient_accumulation_steps=6", "--eval_interval=40", "--eval_iters=8",
                   "--log_interval=20", "--max_iters=100000"),
        turn="backward", turns=120, numbers=True,
        places=(*known("forward", "backward"), *new("backward"), *new("evaluation_first", "save", ranks=ZERO),
                *later("evaluation_later", "save", ranks=ZERO)),
    ),
    Kind(
        name="ddp_tutorial", repository="examples", script="distributed/ddp-tutorial-series/multinode.py",
        environment=ON_CPU, arguments=("100000", "20"),
        turn="backward", turns=120, numbers=True,
        places=(*STEPS, *later("epochs"), *new("loader", "backward"), *new("save", ranks=ZERO),
                *later("save", ranks=ZERO)),
    ),
    Kind(
        name="mingpt_ddp", repository="examples", script="distributed/minGPT-ddp/mingpt/main.py",
        packages=("hydra", "boto3", "fsspec"), data=("text",), environment={"OUTSIDE_ON_CPU": "accelerator"},
        arguments=("data_config.path=input.txt", "data_config.block_size=32", "data_config.truncate=0.05",
                   "trainer_config.max_epochs=10000", "trainer_config.batch_size=8", "trainer_config.use_amp=False",
                   "trainer_config.data_loader_workers=1", "trainer_config.save_every=1", "gpt_config.n_layer=2",
                   "gpt_config.n_head=2", "gpt_config.n_embd=64"),
        turn="backward", turns=60, numbers=True,
        places=(*STEPS, *new("loader", "backward"), *new("save", ranks=ZERO)),
    ),
    Kind(
        name="timm_train", repository="pytorch-image-models", script="train.py",
        packages=("torchvision", "yaml", "safetensors", "huggingface_hub"), data=("images",), environment=ON_CPU,
        arguments=("--data-dir=images", "--train-split=train", "--val-split=validation", "--model=resnet10t",
                   "--img-size=32", "--num-classes=4", "-b=8", "--epochs=10000", "-j=1", "--device=cpu",
                   "--no-prefetcher", "--log-interval=10"),
        turn="backward", turns=60, numbers=True,
        places=(*STEPS, *new("backward", "loader", "evaluation_first"), *new("save", ranks=ZERO)),
    ),
    Kind(
        name="accelerate_nlp", repository="accelerate", script="examples/nlp_example.py", packages=ACCELERATE,
        data=("bert", "pairs"), environment=OFFLINE, arguments=("--cpu",),
        turn="backward", turns=60, numbers=True, places=(*STEPS, *new("loader", "backward", "forward")),
    ),
    Kind(
        name="accelerate_local_sgd", repository="accelerate", script="examples/by_feature/local_sgd.py",
        packages=ACCELERATE, data=("bert", "pairs"), environment=OFFLINE, arguments=("--cpu",),
        turn="backward", turns=60, numbers=True, places=(*STEPS, *new("loader", "forward")),
    ),
    Kind(
        name="accelerate_accumulation", repository="accelerate",
        script="examples/by_feature/gradient_accumulation_for_autoregressive_models.py", packages=ACCELERATE,
        data=("smol", "lines"), environment=OFFLINE,
        arguments=("--cpu", "--gradient_accumulation_steps=2", "--per_device_batch_size=1"),
        turn="backward", turns=60, numbers=True, places=(*STEPS, *new("loader", "backward")),
    ),
    Kind(
        name="trl_sft", repository="trl", script="trl/scripts/sft.py", packages=TRL, data=("tiny", "talks"),
        environment=OFFLINE,
        arguments=(*_TRL, "--dataset_name=talks", "--max_length=64", "--eval_strategy=steps", "--eval_steps=50"),
        turn="backward", turns=60, numbers=True,
        places=(*STEPS, *new("loader", "backward", "evaluation_first"), *new("save", ranks=ZERO)),
    ),
    Kind(
        name="trl_dpo", repository="trl", script="trl/scripts/dpo.py", packages=TRL, data=("tiny", "talks"),
        environment=OFFLINE, arguments=(*_TRL, "--dataset_name=choices"),
        turn="backward", turns=60, numbers=True, places=(*STEPS, *new("loader", "backward"), *new("save", ranks=ZERO)),
    ),
    Kind(
        name="trl_grpo", repository="trl", script="trl/scripts/grpo.py", packages=TRL, data=("tiny", "talks"),
        environment=OFFLINE,
        arguments=(*_TRL, "--dataset_name=prompts", "--reward_funcs=think_format_reward", "--num_generations=2",
                   "--max_completion_length=16"),
        turn="backward", turns=20, numbers=True, places=(*known("sample", "backward"), *new("sample", "backward")),
    ),
    Kind(
        name="cleanrl_ppo", repository="cleanrl", script="cleanrl/ppo_atari_multigpu.py",
        packages=("gymnasium", "ale_py", "cv2", "tyro", "tensorboard", "rich"),
        environment={"PYTHONPATH": "{repository}"},
        arguments=("--env-id=ale_py:BreakoutNoFrameskip-v4", "--local-num-envs=2", "--num-steps=16", "--no-cuda"),
        turn="backward", turns=60, numbers=True, desync=("extra", "skip"),
        places=(*known("call", "backward", "sample"), *new("backward", "sample")),
    ),
)  # fmt: skip
