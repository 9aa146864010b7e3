/* Makes every Vulkan device claim that it binds tensors up to 4 GiB, as real GPUs do; Mesa's lavapipe says 128 MiB.
 * For llama-fit-params, which computes nothing (plan_vs_fit_params.py --env LD_PRELOAD=...); a server with a small model ran with it too:
 *
 *     cc -shared -fPIC -o range.so vulkan_range.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <vulkan/vulkan.h>

static PFN_vkGetPhysicalDeviceProperties2 real;

static VKAPI_ATTR void VKAPI_CALL wide(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *properties) {
    real(device, properties);
    properties->properties.limits.maxStorageBufferRange = 0xffffffffu;
    for (VkBaseOutStructure *next = properties->pNext; next; next = next->pNext)
        if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES)
            ((VkPhysicalDeviceMaintenance4Properties *)next)->maxBufferSize = 0xffffffffffull;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char *name) {
    static PFN_vkGetInstanceProcAddr next;
    if (!next)
        next = (PFN_vkGetInstanceProcAddr)dlsym(RTLD_NEXT, "vkGetInstanceProcAddr");
    PFN_vkVoidFunction found = next(instance, name);
    if (found && (!strcmp(name, "vkGetPhysicalDeviceProperties2") || !strcmp(name, "vkGetPhysicalDeviceProperties2KHR"))) {
        real = (PFN_vkGetPhysicalDeviceProperties2)found;
        return (PFN_vkVoidFunction)wide;
    }
    return found;
}
