#include "data/image_scratch.h"

#include "base/err.h"
#include "base/log.h"
#include "base/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int image_scratch_init(ImageScratch *s, int64_t max_pixels)
{
    memset(s, 0, sizeof *s);
    return image_decoder_create(&s->decoder, max_pixels);
}

void image_scratch_deinit(ImageScratch *s)
{
    image_decoder_destroy(s->decoder);
    free(s->bytes.data);
    free(s->pixels.data);
    memset(s, 0, sizeof *s);
}

void image_counters_add(ImageCounters *sum, const ImageCounters *more)
{
    sum->read_s += more->read_s;
    sum->decode_s += more->decode_s;
    sum->resize_s += more->resize_s;
    sum->augment_s += more->augment_s;
    sum->n_sample += more->n_sample;
    sum->n_skipped += more->n_skipped;
    sum->n_image += more->n_image;
    sum->read_bytes += more->read_bytes;
}

int image_skips_init(ImageSkips *k)
{
    memset(k, 0, sizeof *k);
    k->first = IMAGE_SKIP_FIRST;
    k->name = k->of = "";
    errno           = pthread_mutex_init(&k->lock, NULL);
    return errno ? err_sys("a mutex") : 0;
}

void image_skips_deinit(ImageSkips *k) { pthread_mutex_destroy(&k->lock); }

/* 1: the file was not named before, and there is room for its name. */
static int is_news(ImageSkips *k, const char *name)
{
    uint64_t hash = XXH3_64bits(name, strlen(name));
    for (int i = 0; i < k->n_said; i++) {
        if (k->said[i] == hash) return 0;
    }
    if (k->n_said == IMAGE_SKIP_LOGGED) return 0;
    k->said[k->n_said++] = hash;
    return 1;
}

void image_skips_note(ImageSkips *k, const char *name, const char *why)
{
    thread_lock(&k->lock);
    k->seen++;
    k->skipped += why != NULL;
    int is_new = why && is_news(k, name), is_last = k->n_said == IMAGE_SKIP_LOGGED;
    thread_unlock(&k->lock);
    if (is_new) log_warn("%s: skipped: %s%s", name, why, is_last ? " (further ones are only counted)" : "");
}

int image_skips_check(ImageSkips *k, double limit)
{
    thread_lock(&k->lock);
    int64_t seen = k->seen, skipped = k->skipped;
    thread_unlock(&k->lock);
    const char *colon = k->name[0] ? ": " : "";
    if (limit < 1 && skipped == seen && seen >= k->first) {
        if (seen == 1) return err_set("%s%sthe only%s sample could not be used", k->name, colon, k->of);
        return err_set("%s%snone of the first %lld%s samples could be used", k->name, colon, (long long)seen,
                       k->of);
    }
    if (seen < IMAGE_SKIP_AFTER || (double)skipped <= limit * (double)seen) return 0;
    return err_set("%s%s%lld of %lld%s samples could not be used, more than data.skip_limit allows (%g)",
                   k->name, colon, (long long)skipped, (long long)seen, k->of, limit);
}
