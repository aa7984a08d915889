#include "text/known.h"

#include "base/err.h"

#include <string.h>

const char known_decoder[] =
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}";

#define BYTE_LEVEL(use_regex)                                                                                \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":" use_regex "}"

#define SPLIT_BY(pattern)                                                                                    \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern        \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL("false") "]}"

#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORDS(numbers)                                                                                       \
    ENDINGS "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" numbers                                              \
            "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

#define UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define CASED                                                                                                \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "*" LOWER "+" ENDINGS "?|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER    \
    "+" LOWER "*" ENDINGS                                                                                    \
    "?|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static const struct {
    const char *name, *json;
} splits[] = {
    { "gpt2", BYTE_LEVEL("true") },
    { "cl100k", SPLIT_BY(WORDS("\\\\p{N}{1,3}")) },
    { "llama3", SPLIT_BY(WORDS("\\\\p{N}{1,3}")) },
    { "qwen2", SPLIT_BY(WORDS("\\\\p{N}")) },
    { "o200k", SPLIT_BY(CASED) },
};

static const KnownRanks ranks[] = {
    { "r50k_base", 50256, "gpt2", 50256, "<|endoftext|>" },
    { "p50k_base", 50280, "gpt2", 50256, "<|endoftext|>" },
    { "cl100k_base", 100256, "cl100k", 100257,
      "<|endoftext|> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> - - - - - - - - - - - - - - - "
      "<|endofprompt|>" },
    { "o200k_base", 199998, "o200k", 199999,
      "<|endoftext|> - - - - - - - - - - - - - - - - - - <|endofprompt|>" },
    { "Llama 3", 128000, "llama3", 128000,
      "<|begin_of_text|> <|end_of_text|> *4 <|start_header_id|> <|end_header_id|> *1 <|eot_id|> *246" },
    { "Qwen", 151643, "qwen2", 151643, "<|endoftext|> <|im_start|> <|im_end|>" },
};

const KnownRanks *known_ranks(int64_t n_rank)
{
    for (int i = 0; i < ARRAY_LEN(ranks); i++) {
        if (ranks[i].n_rank == n_rank) return &ranks[i];
    }
    return NULL;
}

const char *known_ranks_list(void)
{
    return "r50k_base 50256, p50k_base 50280, cl100k_base 100256, o200k_base 199998, Llama 3 128000, Qwen "
           "151643";
}

const char *known_pre_tokenizer(const char *name)
{
    for (int i = 0; i < ARRAY_LEN(splits); i++) {
        if (strcmp(splits[i].name, name) == 0) return splits[i].json;
    }
    return NULL;
}

const char *known_pre_tokenizer_list(void) { return "gpt2, cl100k, llama3, qwen2, o200k"; }
