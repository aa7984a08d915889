#include "watch/assets.h"

#include "base/err.h"

#include <string.h>

/* The assembler copies each file into the program. PAGE_FETCHED is the folder of what the build fetches
 * (tools/fetch_uplot.sh); its files are empty where that was not possible. */
#define EMBED(symbol, file)                                                                                  \
    __asm__(".section .rodata\n.hidden " #symbol "\n.hidden " #symbol "_end\n.global " #symbol "\n" #symbol  \
            ":\n.incbin \"" file "\"\n.global " #symbol "_end\n" #symbol "_end:\n.byte 0\n.previous\n");     \
    extern const char symbol[], symbol##_end[]

EMBED(page_index, "src/watch/page/index.html");
EMBED(page_css, "src/watch/page/page.css");
EMBED(report_css, "src/watch/page/report.css");
EMBED(page_js, "src/watch/page/page.js");
EMBED(page_plot, "src/watch/page/plot.js");
EMBED(page_icon, "src/watch/page/icon.svg");
EMBED(uplot_js, PAGE_FETCHED "/uplot.js");
EMBED(uplot_css, PAGE_FETCHED "/uplot.css");
EMBED(uplot_license, PAGE_FETCHED "/uplot.license.txt");

int asset_find(const char *path, Asset *out)
{
    static const struct {
        const char *path, *type, *begin, *end;
    } row[] = {
        { "/", "text/html; charset=utf-8", page_index, page_index_end },
        { "/page.css", "text/css; charset=utf-8", page_css, page_css_end },
        { "/report.css", "text/css; charset=utf-8", report_css, report_css_end },
        { "/page.js", "text/javascript; charset=utf-8", page_js, page_js_end },
        { "/plot.js", "text/javascript; charset=utf-8", page_plot, page_plot_end },
        { "/icon.svg", "image/svg+xml", page_icon, page_icon_end },
        { "/uplot.js", "text/javascript; charset=utf-8", uplot_js, uplot_js_end },
        { "/uplot.css", "text/css; charset=utf-8", uplot_css, uplot_css_end },
        { "/uplot.license.txt", "text/plain; charset=utf-8", uplot_license, uplot_license_end },
    };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        if (strcmp(path, row[i].path) != 0) continue;
        *out = (Asset){ row[i].path, row[i].type, row[i].begin, (size_t)(row[i].end - row[i].begin) };
        return 1;
    }
    return 0;
}
