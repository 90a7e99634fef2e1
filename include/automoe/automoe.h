// The whole public C++ API.
#pragma once

#include "automoe/checkpoint.h"
#include "automoe/error.h"
#include "automoe/model.h"
#include "automoe/trainer.h"
