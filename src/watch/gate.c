#include "watch/gate.h"

#include "base/str.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

int gate_same(const char *secret, const char *given)
{
    size_t                 n_secret = strnlen(secret, GATE_MOST), n_given = strnlen(given, GATE_MOST + 1);
    unsigned char          a[GATE_MOST] = { 0 }, b[GATE_MOST] = { 0 };
    volatile unsigned char differ = (unsigned char)(n_secret != n_given || n_secret == 0);
    memcpy(a, secret, n_secret);
    memcpy(b, given, n_given > GATE_MOST ? GATE_MOST : n_given);
    for (size_t i = 0; i < GATE_MOST; i++) differ |= (unsigned char)(a[i] ^ b[i]);
    return !differ;
}

static int all_digits(const char *s) { return strspn(s, "0123456789") == strlen(s); }

int gate_host_is_ours(const char *host, const char *own_name)
{
    char            name[128];
    struct in_addr  v4;
    struct in6_addr v6;
    if (!host || str_copy(name, sizeof name, host) < 0) return 0;
    char *close = name[0] == '[' ? strchr(name, ']') : NULL;
    if (close) {
        if (close[1] && !(close[1] == ':' && all_digits(close + 2))) return 0;
        *close = '\0';
        return inet_pton(AF_INET6, name + 1, &v6) == 1;
    }
    char *colon = strchr(name, ':');
    if (colon && !all_digits(colon + 1)) return 0;
    if (colon) *colon = '\0';
    if (inet_pton(AF_INET, name, &v4) == 1 || strcasecmp(name, "localhost") == 0) return 1;
    return own_name && *own_name && strcasecmp(name, own_name) == 0;
}

const char *gate_bearer(const char *header)
{
    static const char scheme[] = "Bearer ";
    if (!header || strncasecmp(header, scheme, sizeof scheme - 1) != 0) return NULL;
    return header + sizeof scheme - 1;
}

int gate_cookie(const char *header, const char *name, char *buf, size_t n)
{
    size_t len = strlen(name);
    while (header && *header) {
        header += strspn(header, "; ");
        size_t item = strcspn(header, ";");
        if (item > len && header[len] == '=' && memcmp(header, name, len) == 0) {
            size_t value = item - len - 1;
            if (value >= n) return -1;
            memcpy(buf, header + len + 1, value);
            buf[value] = '\0';
            return 0;
        }
        header += item;
    }
    return -1;
}
