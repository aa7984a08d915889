/* The table. Adding a key: a field in recipe.h and a row here; nothing else. */
#include "conf/schema.h"

#include "base/err.h"

static const char *const precision_names[] = { "auto", "fp32", "tf32", "bf16", "fp16", "fp8", NULL };
static const char *const recompute_names[] = { "auto", "none", "cheap", "block", NULL };
static const char *const norm_names[]      = { "layernorm", "rmsnorm", NULL };
static const char *const pos_names[]       = { "learned", "rope", NULL };
static const char *const act_names[]       = { "gelu", "swiglu", "relu2", NULL };
static const char *const mask_names[]      = { "causal", "full", "prefix", "document", NULL };
static const char *const schedule_names[]  = { "cosine", "onecycle", "linear", "constant", "trapezoid", NULL };
static const char *const data_names[]      = { "text", "tokens", "random", NULL };
static const char *const give_way_names[]  = { "moments", "gradients", NULL };

#define ROW(key, kind, field, dflt) .name = key, .type = kind, .offset = offsetof(Recipe, field), .def = dflt
#define BETWEEN(lo, hi)             .min = lo, .max = hi
#define SWITCH(leaf, text)          { ROW("opt." #leaf, KEY_BOOL, opt.leaf, "true"), .help = text }

#define INT_MAX_BOUND           9007199254740992.0 /* 2^53: beyond it a double bound does not compare exactly */

/* clang-format off */
const SchemaRow schema_table[] = {
    { ROW("run", KEY_TEXT, run, ""), .aka = "name,run_name,out_dir",
      .help = "name of the run; everything it writes goes into runs/NAME (default: the recipe's file name)" },
    { ROW("steps", KEY_INT, steps, "1000"), BETWEEN(1, 1e9), .aka = "max_steps,max_iters,num_iterations,iterations,train_steps",
      .help = "optimizer updates" },
    { ROW("step_tokens", KEY_INT, step_tokens, "524288"), BETWEEN(1, 1 << 30), .aka = "batch_tokens,total_batch_size,tokens_per_step,global_batch_tokens",
      .help = "tokens per optimizer update, over all micro-batches and GPUs; a multiple of model.context" },
    { ROW("micro_batch", KEY_INT, micro_batch, "0"), BETWEEN(0, 65536), .aka = "batch_size,micro_batch_size,device_batch_size,per_device_train_batch_size",
      .help = "sequences computed at once; 0: the largest that pays and fits. Never changes the mathematics" },
    { ROW("recompute", KEY_ENUM, recompute, "auto"), .names = recompute_names, .aka = "gradient_checkpointing,activation_checkpointing",
      .help = "activations the backward pass computes again instead of keeping: none, cheap (norms, elementwise) or the whole block" },
    { ROW("precision", KEY_ENUM, precision, "auto"), .names = precision_names, .aka = "dtype,amp,mixed_precision",
      .help = "arithmetic of the matrix products; auto: bf16 on compute capability 8.0 and up, fp16 on 7.5, fp32 on the CPU" },
    { ROW("device", KEY_TEXT, device, "auto"), .aka = "backend,accelerator",
      .help = "auto, cpu, cuda or cuda:N; auto takes the GPU when there is a usable one" },
    { ROW("threads", KEY_INT, threads, "0"), BETWEEN(0, 4096), .aka = "num_threads,omp_num_threads",
      .help = "CPU threads for computing; 0: all" },
    { ROW("seed", KEY_INT, seed, "1"), BETWEEN(0, INT_MAX_BOUND), .aka = "random_seed,manual_seed",
      .help = "start of every random number; the same seed gives the same run" },
    { ROW("memory_limit", KEY_SIZE, memory_limit, ""), .aka = "max_memory,gpu_memory",
      .help = "most device memory the plan may use: bytes (60G) or a share (80%); default: what is free" },
    { ROW("deterministic", KEY_BOOL, deterministic, "false"), .aka = "use_deterministic_algorithms",
      .help = "only kernels that give the same bits each time" },
    { ROW("give_way", KEY_LIST, give_way, ""), .names = give_way_names,
      .help = "concessions allowed when the run does not fit, though they change the mathematics: moments, gradients (in bf16)" },
    { ROW("require", KEY_LIST, require, ""), .names = precision_names + 1, .items = "opt.",
      .help = "optimisations (keys of opt, or a precision) that must be on; the run does not start otherwise" },
    { ROW("budget_s", KEY_FLOAT, budget_s, "0"), BETWEEN(0, 1e9), .aka = "max_time,time_limit,max_seconds",
      .help = "wall-clock budget in seconds, after which the run saves and ends; 0: none" },
    { ROW("log_every", KEY_INT, log_every, "1"), BETWEEN(1, 1e9), .aka = "log_interval,logging_steps",
      .help = "steps between lines in metrics.jsonl" },
    { ROW("max_skips", KEY_INT, max_skips, "10"), BETWEEN(1, 1e6),
      .help = "bad steps (not finite, or spiking) in a row before the run goes back to its last good checkpoint" },
    { ROW("spike_factor", KEY_FLOAT, spike_factor, "3"), BETWEEN(0, 1e6),
      .help = "a loss above this multiple of its running mean is a spike; 0: off" },

    { ROW("model.layers", KEY_INT, model.layers, "12"), BETWEEN(1, 1024), .aka = "n_layer,n_layers,num_hidden_layers,num_layers,depth",
      .help = "transformer blocks" },
    { ROW("model.width", KEY_INT, model.width, "768"), BETWEEN(8, 65536), .aka = "n_embd,d_model,hidden_size,dim,embed_dim,channels",
      .help = "size of the residual stream" },
    { ROW("model.heads", KEY_INT, model.heads, "12"), BETWEEN(1, 1024), .aka = "n_head,n_heads,num_attention_heads,num_heads",
      .help = "query heads; must divide model.width unless model.head_dim is given" },
    { ROW("model.kv_heads", KEY_INT, model.kv_heads, "0"), BETWEEN(0, 1024), .aka = "n_kv_head,n_kv_heads,num_key_value_heads",
      .help = "key/value heads, a divisor of model.heads; 0: as many as model.heads" },
    { ROW("model.head_dim", KEY_INT, model.head_dim, "0"), BETWEEN(0, 512), .aka = "head_size,d_head",
      .help = "size of a head; 0: model.width / model.heads" },
    { ROW("model.ffn", KEY_INT, model.ffn, "0"), BETWEEN(0, 1048576), .aka = "intermediate_size,d_ff,ffn_dim,mlp_dim,hidden_dim",
      .help = "feed-forward size; 0: 4 x width, for swiglu 8/3 x width rounded up to a multiple of 128" },
    { ROW("model.vocab", KEY_INT, model.vocab, "50257"), BETWEEN(2, 16777216), .aka = "vocab_size,n_vocab",
      .help = "token kinds; at least 256 for data.kind text" },
    { ROW("model.context", KEY_INT, model.context, "1024"), BETWEEN(1, 1048576), .aka = "block_size,seq_len,max_position_embeddings,context_length,sequence_length,n_ctx",
      .help = "tokens in a sequence" },
    { ROW("model.norm", KEY_ENUM, model.norm, "layernorm"), .names = norm_names, .help = "normalisation before each half of a block" },
    { ROW("model.norm_eps", KEY_FLOAT, model.norm_eps, "1e-5"), BETWEEN(1e-12, 0.1), .aka = "rms_norm_eps,layer_norm_eps,layer_norm_epsilon",
      .help = "added to the variance in a norm" },
    { ROW("model.pos", KEY_ENUM, model.pos, "learned"), .names = pos_names, .aka = "position,position_embedding",
      .help = "positions: a learned table, or rotations of queries and keys" },
    { ROW("model.rope_theta", KEY_FLOAT, model.rope_theta, "10000"), BETWEEN(1, 1e12), .aka = "rope_base,rotary_base",
      .help = "base of the rotations' wavelengths" },
    { ROW("model.act", KEY_ENUM, model.act, "gelu"), .names = act_names, .aka = "activation,hidden_act,activation_function",
      .help = "feed-forward form: gelu (tanh form), swiglu (gated) or relu2 (squared ReLU)" },
    { ROW("model.bias", KEY_BOOL, model.bias, "false"), .help = "biases on every linear layer" },
    { ROW("model.qkv_bias", KEY_BOOL, model.qkv_bias, "false"), .aka = "attention_bias", .help = "biases on the query/key/value projection alone" },
    { ROW("model.tied", KEY_BOOL, model.tied, "true"), .aka = "tie_word_embeddings,tie_weights,tied_embeddings", .help = "the head shares the embedding's weights" },
    { ROW("model.qk_norm", KEY_BOOL, model.qk_norm, "false"), .help = "RMS norm of every query and key head" },
    { ROW("model.dropout", KEY_FLOAT, model.dropout, "0"), BETWEEN(0, 0.99), .aka = "resid_pdrop,attn_pdrop", .help = "share of activations dropped while training" },
    { ROW("model.mask", KEY_ENUM, model.mask, "causal"), .names = mask_names, .help = "what a query may see: causal; full; prefix; document (causal within data.document_token)" },
    { ROW("model.init_std", KEY_FLOAT, model.init_std, "0.02"), BETWEEN(1e-6, 1), .aka = "initializer_range,init_method_std",
      .help = "standard deviation of initial weights; projections into the residual stream get init_std / sqrt(2 layers)" },

    { ROW("optim.lr", KEY_FLOAT, optim.lr, "6e-4"), BETWEEN(1e-12, 100), .aka = "learning_rate,max_lr,peak_lr", .help = "highest learning rate" },
    { ROW("optim.min_lr", KEY_FLOAT, optim.min_lr, "0"), BETWEEN(0, 100), .aka = "lr_min,final_lr,eta_min", .help = "learning rate the schedule ends at" },
    { ROW("optim.warmup", KEY_INT, optim.warmup, "0"), BETWEEN(0, 1e9), .aka = "warmup_iters,warmup_steps,lr_warmup,num_warmup_steps", .help = "steps of linear warm-up" },
    { ROW("optim.schedule", KEY_ENUM, optim.schedule, "cosine"), .names = schedule_names, .aka = "lr_schedule,lr_scheduler,scheduler,decay", .help = "learning rate after the warm-up" },
    { ROW("optim.cooldown", KEY_FLOAT, optim.cooldown, "0.2"), BETWEEN(0, 1), .aka = "warmdown,decay_fraction", .help = "schedule trapezoid: last share of the steps, which decays" },
    { ROW("optim.beta1", KEY_FLOAT, optim.beta1, "0.9"), BETWEEN(0, 0.999999), .aka = "adam_beta1,momentum", .help = "AdamW: decay of the first moment" },
    { ROW("optim.beta2", KEY_FLOAT, optim.beta2, "0.95"), BETWEEN(0, 0.999999), .aka = "adam_beta2", .help = "AdamW: decay of the second moment" },
    { ROW("optim.eps", KEY_FLOAT, optim.eps, "1e-8"), BETWEEN(1e-30, 1), .aka = "adam_eps,adam_epsilon", .help = "AdamW: added to the root of the second moment" },
    { ROW("optim.weight_decay", KEY_FLOAT, optim.weight_decay, "0.1"), BETWEEN(0, 10), .aka = "wd", .help = "decoupled weight decay of matrices" },
    { ROW("optim.clip", KEY_FLOAT, optim.clip, "1"), BETWEEN(0, 1e9), .aka = "grad_clip,max_grad_norm,clip_grad,gradient_clip_val", .help = "largest norm of the whole gradient; 0: none" },

    { ROW("data.kind", KEY_ENUM, data.kind, "text"), .names = data_names, .aka = "dataset,data_type", .help = "text: bytes of a file; tokens: shards of token numbers; random: noise, for speed only" },
    { ROW("data.train", KEY_TEXT, data.train, ""), .aka = "train_file,train_data,input_bin,dataset_path,train_path", .help = "file (text), or file or folder of shards (tokens); from the current folder, else the recipe's" },
    { ROW("data.val", KEY_TEXT, data.val, ""), .aka = "val_file,val_data,validation,input_val_bin,eval_file", .help = "the same for validation; default: the last data.val_fraction of data.train" },
    { ROW("data.val_fraction", KEY_FLOAT, data.val_fraction, "0.1"), BETWEEN(0, 0.5), .aka = "val_split,validation_split", .help = "share of data.train kept for validation when data.val is not given" },
    { ROW("data.threads", KEY_INT, data.threads, "0"), BETWEEN(0, 1024), .aka = "num_workers,workers,loader_threads", .help = "loader threads; 0: as many as the measured wait asks for" },
    { ROW("data.depth", KEY_INT, data.depth, "4"), BETWEEN(1, 1024), .aka = "prefetch_factor,prefetch_depth,queue_size", .help = "batches kept ready" },
    { ROW("data.document_token", KEY_INT, data.document_token, "-1"), BETWEEN(-1, 16777215), .aka = "eot_token,eos_token_id,bos_token_id", .help = "token that ends a document, for model.mask document; -1: none" },

    { ROW("eval.every", KEY_INT, eval.every, "250"), BETWEEN(0, 1e9), .aka = "eval_interval,val_loss_every,eval_steps,val_every", .help = "steps between evaluations; 0: only at the start and the end" },
    { ROW("eval.batches", KEY_INT, eval.batches, "20"), BETWEEN(1, 1e6), .aka = "eval_iters,val_batches,val_max_steps", .help = "micro-batches per evaluation" },
    { ROW("eval.target", KEY_FLOAT, eval.target, "0"), BETWEEN(0, 1e6), .aka = "target_loss,target_val_loss", .help = "stop once the validation loss is at or below this; 0: never" },
    { ROW("eval.patience", KEY_INT, eval.patience, "0"), BETWEEN(0, 1e6), .aka = "early_stopping,early_stopping_patience", .help = "evaluations without improvement before stopping; 0: never stop" },

    { ROW("checkpoint.every", KEY_INT, checkpoint.every, "500"), BETWEEN(0, 1e9), .aka = "save_every,save_steps,checkpoint_interval,ckpt_every", .help = "steps between checkpoints; 0: only at the end" },
    { ROW("checkpoint.keep", KEY_INT, checkpoint.keep, "2"), BETWEEN(1, 1e6), .aka = "save_total_limit,keep_last", .help = "newest checkpoints that are kept" },
    { ROW("checkpoint.keep_every", KEY_INT, checkpoint.keep_every, "0"), BETWEEN(0, 1e9), .help = "checkpoints whose step is a multiple of this are kept too; 0: none" },

    SWITCH(add_norm, "residual add fused with the norm after it"),
    SWITCH(norm_bwd, "a norm's input and weight gradients and the residual add in one pass"),
    SWITCH(xent, "cross-entropy and its gradient in one pass, in place"),
    SWITCH(act_bias, "activation gradient fused with the bias gradient"),
    SWITCH(linear_act, "activation in the matrix product's epilogue"),
    SWITCH(chunk_head, "the head in chunks of rows, never all logits at once, where that pays"),
    SWITCH(flash, "attention that never stores a context x context matrix"),
    SWITCH(graphs, "the step captured into CUDA graphs"),
    SWITCH(tune, "library algorithms are timed instead of taking the first proposal"),
    SWITCH(prefetch, "batches are read by threads ahead of use"),
};
/* clang-format on */

const int schema_count = ARRAY_LEN(schema_table);
_Static_assert(ARRAY_LEN(schema_table) <= SCHEMA_MAX, "raise SCHEMA_MAX");
