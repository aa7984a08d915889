/* brim data VERB: what turns files into training data, and shows them. One verb a row. */
#include "base/err.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "bin/cmd_data.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name;
    int (*run)(const CmdArgs *a);
    const char *usage, *help;
} Verb;

static const Verb verbs[] = {
    { "images", cmd_data_images, "PATH --out FOLDER [--size N] [--raw] [--quality N] [--threads N]",
      "images of class folders, idx or tar files into checksummed albums" },
    { "clips", cmd_data_clips,
      "VIDEO... --out FOLDER [--frames N] [--stride N] [--size N] [--raw] [--quality N]",
      "videos into albums of clips" },
    { "show", cmd_data_show,
      "PATH --out SHEET.png [--size N] [--augment LIST] [--count N] [--measure SECONDS]",
      "a contact sheet of what a net sees; with --measure also how fast" },
};

/* Each verb knows its own options and lists them when asked (cmd_parse). */
static int list_verbs(const CmdArgs *a)
{
    for (int i = 0; i < ARRAY_LEN(verbs); i++) {
        char   *ask[] = { "--help" };
        CmdArgs verb  = *a;
        verb.argc     = 1;
        verb.argv     = ask;
        printf("brim data %s %s\n    %s\n", verbs[i].name, verbs[i].usage, verbs[i].help);
        verbs[i].run(&verb);
        err_clear();
    }
    return err_user("command line: --help: not together with anything else");
}

int cmd_data(const CmdArgs *a)
{
    if (a->argc < 1) return err_user("command line: data: a verb is missing (images, clips or show)");
    if (strcmp(a->argv[0], "--help") == 0) return list_verbs(a);
    CmdArgs    rest = *a;
    StrNearest near = str_nearest_begin(a->argv[0]);
    rest.argc--;
    rest.argv++;
    for (int i = 0; i < ARRAY_LEN(verbs); i++) {
        if (strcmp(a->argv[0], verbs[i].name) == 0) return verbs[i].run(&rest);
        str_nearest_offer(&near, verbs[i].name);
    }
    return err_user("command line: there is no 'data %s' (did you mean %s?)", a->argv[0],
                    near.best ? near.best : "images, clips or show");
}
