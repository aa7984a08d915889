/* Takes the place of term.c if the program is built without ncurses. */
#include "watch/top.h"

#include "base/err.h"

int top_run(const TopOptions *o)
{
    return err_user("this brim was built without its terminal view: install libncurses-dev and build again "
                    "(brim top --once and "
                    "brim top --web do without)");
}
