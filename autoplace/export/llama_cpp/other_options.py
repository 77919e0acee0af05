"""llama.cpp's words that say nothing of placement: known, so that a misspelt one is not.

Source: common/arg.cpp of b9993, the options of llama-server, llama-cli and llama-fit-params.
"""


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


SWITCHES = word_set(
    """
    --agent --backend-sampling --cache-idle-slots --cache-list --cache-prompt --check-tensors
    --completion-bash --cont-batching --context-shift --conversation --cpu-moe-draft
    --direct-io --display-prompt --embd-gemma-default --embedding --embeddings --escape
    --fim-qwen-1.5b-default --fim-qwen-14b-spec --fim-qwen-30b-default --fim-qwen-3b-default
    --fim-qwen-7b-default --fim-qwen-7b-spec --gpt-oss-120b-default --gpt-oss-20b-default
    --help --ignore-eos --in-prefix-bos --interactive --interactive-first --jinja --kv-unified
    --list-devices --log-disable --log-prefix --log-timestamps --log-verbose
    --lora-init-without-apply --metrics --mlock --mmproj-auto --mmproj-offload
    --models-autoload --multiline-input --no-agent --no-cache-idle-slots --no-cache-prompt
    --no-cont-batching --no-context-shift --no-conversation --no-direct-io --no-display-prompt
    --no-escape --no-host --no-jinja --no-kv-unified --no-log-prefix --no-log-timestamps
    --no-mmproj --no-mmproj-auto --no-mmproj-offload --no-models-autoload --no-op-offload
    --no-perf --no-prefill-assistant --no-reasoning-preserve --no-repack --no-show-timings
    --no-skip-chat-parsing --no-slots --no-spec-draft-backend-sampling --no-ui
    --no-ui-mcp-proxy --no-warmup --no-webui --no-webui-mcp-proxy --offline --op-offload
    --perf --prefill-assistant --prompt-cache-all --prompt-cache-ro --props
    --reasoning-preserve --repack --rerank --reranking --reuse-port --show-timings --simple-io
    --single-turn --skip-chat-parsing --slots --spec-default --spec-draft-backend-sampling
    --spec-draft-cpu-moe --special --spm-infill --swa-full --tts-use-guide-tokens --ui
    --ui-mcp-proxy --usage --verbose --verbose-prompt --version --vision-gemma-12b-default
    --vision-gemma-4b-default --warmup --webui --webui-mcp-proxy -ag -bs -cb -cl -cmoed -cnv
    -dio -e -h -i -if -kvu -mli -ndio -no-ag -no-cnv -no-kvu -nocb -nr -sp -st -v
    """
)
"""Words that stand alone."""

VALUED = word_set(
    """
    --adaptive-decay --adaptive-target --alias --api-key --api-key-file --api-prefix --audio
    --binary-file --cache-ram --cache-reuse --cache-type-k-draft --cache-type-v-draft
    --chat-template --chat-template-file --chat-template-kwargs --checkpoint-min-step --color
    --control-vector --control-vector-scaled --cpu-mask --cpu-mask-batch
    --cpu-mask-batch-draft --cpu-mask-draft --cpu-range --cpu-range-batch --cpu-range-draft
    --cpu-strict --cpu-strict-batch --cpu-strict-batch-draft --cpu-strict-draft
    --ctx-checkpoints --defrag-thold --device-draft --docker-repo --draft --draft-max
    --draft-min --draft-n --draft-n-min --draft-p-min --draft-p-split --dry-allowed-length
    --dry-base --dry-multiplier --dry-penalty-last-n --dry-sequence-breaker --dynatemp-exp
    --dynatemp-range --embd-normalize --file --fit-ctx --fit-print --frequency-penalty
    --gpu-layers-draft --grammar --grammar-file --grp-attn-n --grp-attn-w --hf-file
    --hf-file-v --hf-repo --hf-repo-draft --hf-repo-v --hf-token --host --image
    --image-max-tokens --image-min-tokens --in-prefix --in-suffix --json-schema
    --json-schema-file --keep --log-colors --log-file --log-prompts-dir --log-verbosity
    --logit-bias --lookup-cache-dynamic --lookup-cache-static --lora --lora-scaled
    --media-path --min-p --mirostat --mirostat-ent --mirostat-lr --mmproj --mmproj-url
    --model-draft --model-url --model-vocoder --models-dir --models-max --models-preset
    --mtmd-batch-max-tokens --n-cpu-moe-draft --n-gpu-layers-draft --n-predict --numa --output
    --output-file --override-kv --override-tensor-draft --path --poll --poll-batch
    --poll-batch-draft --poll-draft --pooling --port --predict --presence-penalty
    --print-token-count --prio --prio-batch --prio-batch-draft --prio-draft --prompt
    --prompt-cache --reasoning --reasoning-budget --reasoning-budget-message
    --reasoning-format --repeat-last-n --repeat-penalty --reverse-prompt --rope-freq-base
    --rope-freq-scale --rope-scale --rope-scaling --sampler-seq --samplers --sampling-seq
    --seed --server-base --sleep-idle-seconds --slot-prompt-similarity --slot-save-path
    --spec-draft-cpu-mask --spec-draft-cpu-mask-batch --spec-draft-cpu-range
    --spec-draft-cpu-strict --spec-draft-cpu-strict-batch --spec-draft-device --spec-draft-hf
    --spec-draft-model --spec-draft-n-cpu-moe --spec-draft-n-max --spec-draft-n-min
    --spec-draft-ncmoe --spec-draft-ngl --spec-draft-override-tensor --spec-draft-p-min
    --spec-draft-p-split --spec-draft-poll --spec-draft-poll-batch --spec-draft-prio
    --spec-draft-prio-batch --spec-draft-threads --spec-draft-threads-batch
    --spec-draft-type-k --spec-draft-type-v --spec-ngram-map-k-min-hits
    --spec-ngram-map-k-size-m --spec-ngram-map-k-size-n --spec-ngram-map-k4v-min-hits
    --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-size-n --spec-ngram-min-hits
    --spec-ngram-mod-n-match --spec-ngram-mod-n-max --spec-ngram-mod-n-min
    --spec-ngram-simple-min-hits --spec-ngram-simple-size-m --spec-ngram-simple-size-n
    --spec-ngram-size-m --spec-ngram-size-n --spec-type --sse-ping-interval --ssl-cert-file
    --ssl-key-file --swa-checkpoints --system-prompt --system-prompt-file --tags --temp
    --temperature --threads-batch-draft --threads-draft --threads-http --timeout --tools
    --top-k --top-n-sigma --top-nsigma --top-p --typical --typical-p --ui-config
    --ui-config-file --verbosity --video --webui-config --webui-config-file --xtc-probability
    --xtc-threshold --yarn-attn-factor --yarn-beta-fast --yarn-beta-slow --yarn-ext-factor
    --yarn-orig-ctx -C -Cb -Cbd -Cd -Cr -Crb -Crd -a -bf -cms -co -cram -ctkd -ctvd -ctxcp
    -devd -dr -dt -f -fitc -fitp -gan -gaw -hf -hfd -hff -hffv -hfr -hfrd -hfrv -hft -hfv -j
    -jf -l -lcd -lcs -lv -md -mm -mmu -mu -mv -n -ncmoed -ngld -o -otd -p -ptc -r -rea -s -sps
    -sys -sysf -tbd -td -to
    """
)
"""Words that one value follows."""

TWO_VALUED = frozenset({"--control-vector-layer-range"})
"""Words that two values follow."""

VARIABLES = word_set(
    """
    HF_TOKEN LLAMA_API_KEY LLAMA_ARG_AGENT LLAMA_ARG_ALIAS LLAMA_ARG_API_KEY_FILE
    LLAMA_ARG_API_PREFIX LLAMA_ARG_BACKEND_SAMPLING LLAMA_ARG_CACHE_IDLE_SLOTS
    LLAMA_ARG_CACHE_PROMPT LLAMA_ARG_CACHE_RAM LLAMA_ARG_CACHE_REUSE LLAMA_ARG_CHAT_TEMPLATE
    LLAMA_ARG_CHAT_TEMPLATE_FILE LLAMA_ARG_CHAT_TEMPLATE_KWARGS
    LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT LLAMA_ARG_CONTEXT_SHIFT LLAMA_ARG_CONT_BATCHING
    LLAMA_ARG_CTX_CHECKPOINTS LLAMA_ARG_DEFRAG_THOLD LLAMA_ARG_DIO LLAMA_ARG_DOCKER_REPO
    LLAMA_ARG_DRAFT_MAX LLAMA_ARG_DRAFT_MIN LLAMA_ARG_EMBEDDINGS LLAMA_ARG_ENDPOINT_METRICS
    LLAMA_ARG_ENDPOINT_PROPS LLAMA_ARG_ENDPOINT_SLOTS LLAMA_ARG_FIT_CTX LLAMA_ARG_FIT_ESTIMATE
    LLAMA_ARG_GRP_ATTN_N LLAMA_ARG_GRP_ATTN_W LLAMA_ARG_HF_FILE LLAMA_ARG_HF_FILE_V
    LLAMA_ARG_HF_REPO LLAMA_ARG_HF_REPO_V LLAMA_ARG_HOST LLAMA_ARG_IMAGE_MAX_TOKENS
    LLAMA_ARG_IMAGE_MIN_TOKENS LLAMA_ARG_JINJA LLAMA_ARG_KV_UNIFIED LLAMA_ARG_LOG_COLORS
    LLAMA_ARG_LOG_FILE LLAMA_ARG_LOG_PREFIX LLAMA_ARG_LOG_TIMESTAMPS LLAMA_ARG_LOG_VERBOSITY
    LLAMA_ARG_MLOCK LLAMA_ARG_MMPROJ LLAMA_ARG_MMPROJ_AUTO LLAMA_ARG_MMPROJ_OFFLOAD
    LLAMA_ARG_MMPROJ_URL LLAMA_ARG_MODELS_AUTOLOAD LLAMA_ARG_MODELS_DIR LLAMA_ARG_MODELS_MAX
    LLAMA_ARG_MODELS_PRESET LLAMA_ARG_MODEL_URL LLAMA_ARG_MTMD_BATCH_MAX_TOKENS
    LLAMA_ARG_NO_HOST LLAMA_ARG_NUMA LLAMA_ARG_N_GPU_LAYERS_DRAFT LLAMA_ARG_N_PREDICT
    LLAMA_ARG_OFFLINE LLAMA_ARG_PERF LLAMA_ARG_POOLING LLAMA_ARG_PORT
    LLAMA_ARG_PREFILL_ASSISTANT LLAMA_ARG_REASONING LLAMA_ARG_REASONING_PRESERVE
    LLAMA_ARG_REPACK LLAMA_ARG_RERANKING LLAMA_ARG_REUSE_PORT LLAMA_ARG_ROPE_FREQ_BASE
    LLAMA_ARG_ROPE_FREQ_SCALE LLAMA_ARG_ROPE_SCALE LLAMA_ARG_ROPE_SCALING_TYPE
    LLAMA_ARG_SHOW_TIMINGS LLAMA_ARG_SKIP_CHAT_PARSING LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING
    LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V
    LLAMA_ARG_SPEC_DRAFT_CPU_MOE LLAMA_ARG_SPEC_DRAFT_HF_REPO LLAMA_ARG_SPEC_DRAFT_MODEL
    LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE LLAMA_ARG_SPEC_DRAFT_N_MAX LLAMA_ARG_SPEC_DRAFT_N_MIN
    LLAMA_ARG_SPEC_DRAFT_P_MIN LLAMA_ARG_SPEC_DRAFT_P_SPLIT LLAMA_ARG_SPEC_TYPE
    LLAMA_ARG_SSE_PING_INTERVAL LLAMA_ARG_SSL_CERT_FILE LLAMA_ARG_SSL_KEY_FILE
    LLAMA_ARG_STATIC_PATH LLAMA_ARG_SWA_FULL LLAMA_ARG_TAGS LLAMA_ARG_THINK
    LLAMA_ARG_THINK_BUDGET LLAMA_ARG_THINK_BUDGET_MESSAGE LLAMA_ARG_THREADS_HTTP
    LLAMA_ARG_TIMEOUT LLAMA_ARG_TOOLS LLAMA_ARG_TOP_K LLAMA_ARG_UI LLAMA_ARG_UI_CONFIG
    LLAMA_ARG_UI_CONFIG_FILE LLAMA_ARG_UI_MCP_PROXY LLAMA_ARG_YARN_ATTN_FACTOR
    LLAMA_ARG_YARN_BETA_FAST LLAMA_ARG_YARN_BETA_SLOW LLAMA_ARG_YARN_EXT_FACTOR
    LLAMA_ARG_YARN_ORIG_CTX
    """
)
"""Environment variables of such words."""
