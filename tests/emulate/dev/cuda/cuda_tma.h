#include "hopper.h"
