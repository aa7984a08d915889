#include "conf/bind.h"

#include <arpa/inet.h>
#include <string.h>

int bind_is_local(const char *address)
{
    struct in_addr  v4;
    struct in6_addr v6;
    if (strcmp(address, "localhost") == 0) return 1;
    if (inet_pton(AF_INET, address, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, address, &v6) == 1) return memcmp(&v6, &in6addr_loopback, sizeof v6) == 0;
    return -1;
}
